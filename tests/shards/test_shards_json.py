from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from easysteer_data.errors import RunError
from easysteer_data.shards.checked_json import canonical_json, parse_json, readable_json
from easysteer_data.shards.difference import differences

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(st.dictionaries(st.text(), VALUES, max_size=4))
def test_both_forms_read_back_and_do_not_depend_on_the_order_of_keys(value: dict[str, object]) -> None:
    turned = dict(reversed(value.items()))
    for form in (canonical_json, readable_json):
        assert json.loads(form(value)) == value
        assert form(value) == form(turned)
        assert form(value).isascii()


@pytest.mark.parametrize(
    ("getter", "wrong"),
    [
        ("text", [1, None, []]),
        ("count", [-1, 1.0, True, "1", None]),
        ("flag", [0, 1, "true", None]),
        ("texts", ["a", [1], ["a", None], {}]),
        ("counts", [1, [-1], [True], ["1"]]),
        ("span", [[1], [1, 2, 3], [1, -2], "12"]),
        ("spans", [[], [1, 2], [[1]], [[1, 2], [3]], [[1, 0.5]], [["1", "2"]], [[1, -2]], [[1, 2**63]]]),
        ("record", [1, [], None]),
        ("records", [{}, [1], [[]], None]),
    ],
)
def test_a_value_of_another_type_is_refused_with_file_and_key(getter: str, wrong: list[object]) -> None:
    for value in wrong:
        record = parse_json(json.dumps({"k": value}).encode(), "f.json")
        with pytest.raises(RunError, match=r"f\.json: k(\[0\])? must be"):
            getattr(record, getter)("k")
    with pytest.raises(RunError, match=r"f\.json: missing must be"):
        getattr(parse_json(b"{}", "f.json"), getter)("missing")


def test_differences_are_lines_of_dotted_keys() -> None:
    old = {"a": {"b": 1, "c": [1, 2]}, "same": {"x": None}, "gone": "\u00e9", "empty": {}}
    new = {"a": {"b": 1.5, "c": [1, 3]}, "same": {"x": None}, "new": {"y": True}, "empty": {"z": 0}}
    assert differences(old, new) == [
        "a.b: 1 -> 1.5",
        "a.c: [1, 2] -> [1, 3]",
        "empty: {} -> (absent)",
        "empty.z: (absent) -> 0",
        'gone: "\u00e9" -> (absent)',
        "new.y: (absent) -> true",
    ]
    assert differences(new, new) == []


def test_long_values_are_cut_but_compared_whole() -> None:
    (line,) = differences({"plan": [0] * 1000}, {"plan": [0] * 999 + [1]})
    assert len(line) < 250
    assert line.count("...") == 2
