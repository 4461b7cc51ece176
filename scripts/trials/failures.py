"""Failure trials of captures on many machines: what is killed, filled or cut off, and what then is wrong.

    nice python -m scripts.trials.failures --out trials [--kills 20] [--driver-kills 10] [--away-s 30]

Leaves trials.json and trials.md. Ray, the S3 server, the processes and the kills are real; the actors make
their rows up, since what is tried is who writes and commits what, and engines would only take longer.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from scripts.trials import cluster, stores
from scripts.trials.cluster import Found


@dataclass(frozen=True)
class Trial:
    """One row of the table.

    Attributes:
        what: what was done to the capture.
        n_mishaps: how often it hit.
        lost: shards that are missing at the end.
        doubled: shards that were committed more than once.
        same_bytes: whether the run equals the one of an undisturbed process.
        said: what people were told, where somebody was to be told.
        wall_s: how long it took.
    """

    what: str
    n_mishaps: int
    lost: int
    doubled: int
    same_bytes: bool
    said: str
    wall_s: float

    @property
    def passed(self) -> bool:
        """Whether it hit, and nothing is lost, doubled or different."""
        return self.n_mishaps > 0 and self.same_bytes and not self.lost and not self.doubled


def run_trials(folder: Path, kills: int, driver_kills: int, away_s: float) -> Iterator[Trial]:
    """Run all trials, each in a folder of its own."""
    actors = f"an actor killed at random, {kills} times"
    drivers = f"the driver killed at random, {driver_kills} times"
    todo: list[tuple[str, Callable[[Path], Found]]] = [
        (f"the object store away for {away_s:g} s", lambda out: stores.cut_off(out, away_s)),
        ("two drivers on one URL", stores.two_writers),
        ("two drivers on one folder", cluster.two_drivers),
        ("the disk of one worker full", cluster.fill_one_disk),
        (actors, lambda out: cluster.kill_actors(out, kills)),
        (drivers, lambda out: cluster.kill_driver(out, driver_kills)),
    ]
    with cluster.started():
        for number, (what, trial) in enumerate(todo):
            out, started_s = folder / str(number), time.monotonic()
            out.mkdir(parents=True)
            found = trial(out)
            yield Trial(what, **asdict(found), wall_s=round(time.monotonic() - started_s, 1))


def table(trials: list[Trial]) -> str:
    """The trials as Markdown."""
    lines = [
        "| trial | hits | lost | twice | same bytes | what was said | s |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {t.what} | {t.n_mishaps} | {t.lost} | {t.doubled} | {'yes' if t.same_bytes else 'NO'} "
        f"| {t.said} | {t.wall_s:g} |"
        for t in trials
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--driver-kills", type=int, default=10)
    parser.add_argument("--away-s", type=float, default=30.0)
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    trials: list[Trial] = []
    with tempfile.TemporaryDirectory() as folder:
        for trial in run_trials(Path(folder), asked.kills, asked.driver_kills, asked.away_s):
            trials.append(trial)
            rows = [asdict(trial) | {"passed": trial.passed} for trial in trials]
            (asked.out / "trials.json").write_text(json.dumps(rows, indent=2) + "\n")
            (asked.out / "trials.md").write_text(table(trials))
    if not all(trial.passed for trial in trials):
        raise SystemExit("a trial failed: see the table")


if __name__ == "__main__":
    main()
