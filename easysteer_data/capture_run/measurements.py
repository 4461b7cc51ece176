"""What each shard took: tokens, seconds, gate counts. One line a shard, so that a stopped run loses none.

Beside the run's own files; knows no rows.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from easysteer_data.shards import layout
from easysteer_data.shards.durable import write_durably


class ShardMeasurements:
    """The measurements of a run's shards."""

    def __init__(self, run: Path) -> None:
        self._path = run / layout.MEASURED

    def add(self, shard: int, *, n_tokens: int, wall_s: float, gates: Mapping[str, int]) -> None:
        """Note a shard that is about to be committed."""
        line = {"shard": shard, "n_tokens": n_tokens, "wall_s": round(wall_s, 3), "gates": dict(gates)}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def take(self, others: Iterable[ShardMeasurements]) -> None:
        """Add what other folders noted of this run's shards; a second time changes no total."""
        lines = [line for one in (self, *others) for line in one.lines()]
        write_durably(self._path, "".join(f"{line}\n" for line in dict.fromkeys(lines)).encode())

    def lines(self) -> list[str]:
        """What was noted, one JSON object a line; the last may be torn by a crash."""
        return self._path.read_text(encoding="utf-8").splitlines() if self._path.is_file() else []

    def totals(self) -> dict[str, object]:
        """Sums over the run's shards, of each the latest line."""
        latest: dict[int, dict[str, object]] = {}
        for line in self.lines():
            try:
                entry = json.loads(line)
            except ValueError:  # torn by a crash: its shard is captured again, or counts for nothing
                continue
            latest[int(entry["shard"])] = entry
        gates: Counter[str] = Counter()
        for entry in latest.values():
            gates.update(dict(entry["gates"]))  # type: ignore[call-overload]
        return {
            "n_tokens": sum(int(str(entry["n_tokens"])) for entry in latest.values()),
            "wall_s": round(sum(float(str(entry["wall_s"])) for entry in latest.values()), 3),
            "gates": dict(sorted(gates.items())),
        }
