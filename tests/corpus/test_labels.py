from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from easysteer_data.corpus import label_classes
from easysteer_data.corpus.labels import settle_labels
from easysteer_data.errors import CorpusError
from easysteer_data.types import Prompt

unhurried = settings(deadline=None)


def labelled(*labels: Any) -> list[Prompt]:
    return [
        Prompt(index=i, id=str(i), text=f"text {i}", source=f"rows:{i + 1}", label=label)
        for i, label in enumerate(labels)
    ]


def read_as_csv(*labels: str | None) -> list[Any]:
    return [prompt.label for prompt in settle_labels(labelled(*labels), range(len(labels)))]


@pytest.mark.parametrize(
    ("labels", "kind", "names"),
    [
        ((1, 0, 1, None), "classes", ("0", "1")),
        ((10, 9, -2), "classes", ("-2", "9", "10")),
        (("10", "9"), "classes", ("10", "9")),
        (("b", "a", "B"), "classes", ("B", "a", "b")),
        ((True, False), "classes", ("False", "True")),
        ((0.5, 2.0), "numeric", ()),
        ((None, None), None, ()),
        ((), None, ()),
    ],
)
def test_text_whole_numbers_and_booleans_are_classes_and_decimals_numeric(
    labels: tuple[Any, ...], kind: str | None, names: tuple[str, ...]
) -> None:
    assert label_classes(labelled(*labels)) == (kind, names)


@unhurried
@given(
    st.lists(st.integers(), min_size=1)
    | st.lists(st.text(), min_size=1)
    | st.lists(st.booleans(), min_size=1)
)
def test_the_index_of_a_label_is_its_place_among_the_sorted_distinct_labels(labels: list[Any]) -> None:
    classes = label_classes(labelled(*labels))
    expected = sorted(set(labels))
    assert [classes.index_of(label) for label in labels] == [expected.index(label) for label in labels]


def test_a_label_that_is_no_class_has_no_index() -> None:
    with pytest.raises(CorpusError, match="the label 'c' is none of the classes a, b"):
        label_classes(labelled("a", "b")).index_of("c")


def test_1000_classes_are_allowed_and_1001_refused_with_a_way_out() -> None:
    assert len(label_classes(labelled(*range(1000))).names) == 1000
    with pytest.raises(CorpusError, match=r"1001 distinct values.*decimal numbers \(3\.0\)"):
        label_classes(labelled(*range(1001)))


@pytest.mark.parametrize(
    ("cells", "labels"),
    [
        (["1", "0", "-3"], [1, 0, -3]),
        (["1", None, "0"], [1, None, 0]),
        (["0.5", "2", "1e3"], [0.5, 2.0, 1000.0]),
        (["1", "yes"], ["1", "yes"]),
        (["01", "02"], ["01", "02"]),
        (["1 ", "2"], ["1 ", "2"]),
        (["nan", "1.0"], ["nan", "1.0"]),
        (["true", "false"], ["true", "false"]),
    ],
)
def test_labels_of_a_format_without_types_are_numbers_only_if_all_are_written_so(
    cells: list[str | None], labels: list[Any]
) -> None:
    read = read_as_csv(*cells)
    assert read == labels
    assert list(map(type, read)) == list(map(type, labels))


def test_text_labels_of_a_format_with_types_stay_text() -> None:
    assert [prompt.label for prompt in settle_labels(labelled("1", "0"), ())] == ["1", "0"]


def test_whole_numbers_beside_decimal_ones_become_decimal() -> None:
    labels = [prompt.label for prompt in settle_labels(labelled(1, None, 0.5), ())]
    assert labels == [1.0, None, 0.5]
    assert isinstance(labels[0], float)


@pytest.mark.parametrize("labels", [(1, None, "yes"), (True, None, 1), ("a", None, 0.5), (0.5, None, False)])
def test_labels_of_different_types_are_refused_naming_both_lines(labels: tuple[Any, ...]) -> None:
    with pytest.raises(CorpusError) as raised:
        settle_labels(labelled(*labels), ())
    assert str(raised.value) == (
        f"rows:3: the label {labels[2]!r} is of another type than {labels[0]!r} at rows:1"
    )


@pytest.mark.parametrize("label", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_is_not_finite_is_refused(label: float) -> None:
    with pytest.raises(CorpusError, match=f"rows:2: the label is {label}; give a finite number"):
        settle_labels(labelled(0.5, label), ())
    with pytest.raises(CorpusError, match="rows:1: the label is inf"):
        read_as_csv("1e999")
