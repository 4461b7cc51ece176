"""Cases measured in turns: medians, ratios to what each is compared with, phases and memory of the host."""

from __future__ import annotations

import faulthandler
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from host_memory import sampled, used_bytes
from phases import driver_phases

_HANGS_S = 120


@dataclass(frozen=True)
class Case:
    """Something to be measured.

    Attributes:
        name: how the table calls it.
        beside: name of the case that it is compared with; its own for a baseline.
        action: what is measured.
        before: done each time before it, not measured.
        after: done each time after it, not measured.
    """

    name: str
    beside: str
    action: Callable[[], None]
    before: Callable[[], None] = lambda: None
    after: Callable[[], None] = lambda: None


def measure(cases: Sequence[Case], n_turns: int) -> dict[str, dict[str, Any]]:
    """Run all cases n times in turns, once before to warm up and once after for phases and memory.

    "host GB" is what all processes take at most beyond what they took at the start. Each turn has an order of
    its own: a machine may be faster after a case that lets it rest.
    """
    times: dict[str, list[float]] = {case.name: [] for case in cases}
    where: dict[str, dict[str, float]] = {}
    at_start, grown = used_bytes(), {}
    order = random.Random(0)  # noqa: S311
    for turn in range(n_turns + 2):
        for case in cases if turn == 0 else order.sample(cases, len(cases)):
            faulthandler.dump_traceback_later(_HANGS_S)  # says where a case hangs
            case.before()
            begun = time.perf_counter()
            if turn <= n_turns:
                case.action()
            else:
                with driver_phases() as phases, sampled() as peak:
                    case.action()
                grown[case.name] = round((peak.n_bytes - at_start) / 1e9, 2)
                where[case.name] = {phase: round(spent, 4) for phase, spent in phases.items()}
                sys.stderr.write(f"{where[case.name]}\n")
            taken = time.perf_counter() - begun
            case.after()
            faulthandler.cancel_dump_traceback_later()
            if 0 < turn <= n_turns:
                times[case.name].append(taken)
            sys.stderr.write(f"turn {turn}, {case.name}: {taken:.2f} s\n")
    return {
        case.name: {
            "seconds": round(statistics.median(times[case.name]), 3),
            "all": [round(taken, 3) for taken in times[case.name]],
            "ratio": round(
                statistics.median(
                    base / own for base, own in zip(times[case.beside], times[case.name], strict=True)
                ),
                4,
            ),
            "seconds of the driver": where[case.name],
            "host GB": grown[case.name],
        }
        for case in cases
    }


def as_table(report: Mapping[str, Mapping[str, Any]]) -> str:
    """Rows of a Markdown table: name, seconds, ratio."""
    return "".join(
        f"| {name} | {entry['seconds']:.2f} | {entry['ratio']:.3f} |\n" for name, entry in report.items()
    )
