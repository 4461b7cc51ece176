"""Rows of finished requests are waited for, those of the engine's next step are not."""

from __future__ import annotations

from typing import Any, cast

import pytest

from easysteer_data.engine import arrival
from easysteer_data.engine.arrival import rows_unread, wait_for_rows
from easysteer_data.engine.proof import Recorded
from easysteer_data.select import SelectSpec


@pytest.mark.parametrize(
    ("select", "max_tokens", "n_generated", "expected"),
    [
        (None, 1, 1, 0),
        (None, 9, 9, 0),
        (None, 9, 4, 5),  # it stopped early
        (SelectSpec(generation="all"), 9, 4, 5),
        (SelectSpec(prompt="all"), 9, 4, 0),
        (SelectSpec(generation_tokens=[7]), 1, 1, 0),
        (SelectSpec(generation_tokens=[7]), 9, 4, None),  # which tokens come is not known beforehand
    ],
)
def test_rows_that_a_prompt_could_have_given_and_does_not(
    select: SelectSpec | None, max_tokens: int, n_generated: int, expected: int | None
) -> None:
    assert rows_unread(select, max_tokens, n_generated) == expected


class Session:
    """Has a row at each look, and all that the engine runs at a fetch."""

    def __init__(self, *, keeps_back: bool = False) -> None:
        self.keeps_back = keeps_back
        self.asked: list[str] = []

    def look(self) -> Recorded:
        self.asked.append("look")
        return Recorded([])

    def fetch(self) -> Recorded:
        self.asked.append("fetch")
        return Recorded([])


def asked(session: Session, has_all: Any) -> list[str]:
    n_added: list[Recorded] = []
    fetched = wait_for_rows(cast(Any, session), lambda: has_all(len(n_added)), n_added.append)
    assert fetched == ("fetch" in session.asked)
    assert len(n_added) == len(session.asked)
    return session.asked


def test_no_row_of_a_later_step_is_waited_for_where_it_is_known_how_many_come() -> None:
    assert asked(Session(), lambda n: n >= 0) == []
    assert asked(Session(), lambda n: n >= 3) == ["look"] * 3


def test_all_is_fetched_where_that_is_not_known_or_the_engine_keeps_rows_back() -> None:
    assert asked(Session(), lambda _: None) == ["fetch"]
    assert asked(Session(keeps_back=True), lambda _: False) == ["fetch"]


def test_rows_that_do_not_come_are_asked_for_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrival, "_PATIENCE_S", 0.05)
    looks = asked(Session(), lambda _: False)
    assert looks[-1] == "fetch"
    assert set(looks[:-1]) == {"look"}
