from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from easysteer_data.data_options import RowFilter
from easysteer_data.errors import RunError, SettingsError
from easysteer_data.shards import open_run
from easysteer_data.vectors import ContrastSource
from tests.runs import MadeRows, labelled_rows, random_rows, write_run
from tests.vectors.made import paired_rows


@pytest.fixture(scope="module")
def rows() -> MadeRows:
    made = random_rows()
    return replace(
        made,
        labels=[None if i % 7 == 0 else label for i, label in enumerate(made.labels)],
        groups=[None if i % 5 == 0 else f"group {i // 4}" for i in range(50)],
        fields=[{"letter": "AB"[i % 2], "topic": i} if i % 3 else {} for i in range(50)],
    )


@pytest.fixture(scope="module")
def run(rows: MadeRows, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("run") / "run", rows)


def test_the_rows_of_a_split_are_those_with_a_label_in_the_runs_order(run: Path, rows: MadeRows) -> None:
    source = ContrastSource(open_run(run), layers=[5, 0], confound="letter")
    assert (source.negative, source.positive, source.confound) == ("false", "true", "letter")
    assert source.layer_ids == (0, 5)
    for split in ("train", "validation", "test"):
        chosen = [row for row in rows.rows_of(split) if rows.y[row] >= 0]
        found = source.rows(split, (5, 0))
        assert source.n_rows(split) == len(chosen)
        np.testing.assert_array_equal(found.x.numpy(), rows.x[chosen][:, [2, 0]])
        assert found.positive.tolist() == (rows.y[chosen] == 1).tolist()
        prompts = rows.prompt[chosen]
        assert rows.groups is not None
        assert rows.fields is not None
        for numbers, values in (
            (found.group, [rows.groups[prompt] for prompt in prompts]),
            (found.confound, [rows.fields[prompt].get("letter") for prompt in prompts]),
        ):
            pairs = set(zip(numbers.tolist(), values, strict=True))
            assert len(pairs) == len({number for number, _ in pairs}) == len({value for _, value in pairs})
            assert all((number == -1) == (value is None) for number, value in pairs)


def test_class_means_come_from_the_statistics_as_the_rows_were_captured(tmp_path: Path) -> None:
    rows = paired_rows()
    coarse = open_run(write_run(tmp_path / "run", rows, dtype="int8"))
    contrast = ContrastSource(coarse).contrast((0, 4))
    train = rows.rows_of("train")
    for place, name in enumerate(("false", "true")):
        own = [row for row in train if rows.labels[row] == name]
        expected = rows.x[own][:, :2].astype(np.float64).mean(axis=0)
        np.testing.assert_allclose(contrast.means[place].numpy(), expected, rtol=1e-9, atol=1e-12)
        stored = contrast.rows.class_means()[place].numpy()
        assert np.abs(stored - expected).max() > 1e-6
    norms = np.linalg.norm(rows.x[train][:, :2].astype(np.float64), axis=-1).mean(axis=0)
    np.testing.assert_allclose(contrast.mean_norm.numpy(), norms, rtol=1e-6)


def test_filtered_rows_have_means_of_their_own(run: Path, rows: MadeRows) -> None:
    source = ContrastSource(open_run(run), rows=RowFilter(positions=(0,)))
    contrast = source.contrast((2,))
    first = [row for row in rows.rows_of("train") if rows.position[row] == 0]
    for place in (0, 1):
        own = [row for row in first if rows.y[row] == place]
        np.testing.assert_allclose(contrast.means[place, 0].numpy(), rows.x[own, 1].mean(axis=0), atol=1e-6)


def test_a_confound_that_no_prompt_has_is_none(run: Path) -> None:
    source = ContrastSource(open_run(run), confound="colour")
    assert source.confound is None
    assert set(source.rows("test", (0,)).confound.tolist()) == {-1}


def test_two_of_several_classes_can_be_chosen(tmp_path: Path) -> None:
    rows = labelled_rows((1.0,), n_classes=3)
    run = open_run(write_run(tmp_path / "run", rows))
    with pytest.raises(
        RunError, match=r"the rows are of 3 classes \(a, b, c\), but a direction lies between"
    ):
        ContrastSource(run)
    source = ContrastSource(run, rows=RowFilter(fields={"label": ["c", "a"]}))
    assert (source.negative, source.positive) == ("a", "c")
    chosen = [row for row in rows.rows_of("test") if rows.labels[row] in "ac"]
    assert source.rows("test", (0,)).positive.tolist() == [rows.labels[row] == "c" for row in chosen]


@pytest.mark.parametrize("max_bytes", [1, 10**9])
def test_layers_are_worked_on_in_chunks_that_fit_the_memory(run: Path, max_bytes: int) -> None:
    chunks = list(ContrastSource(open_run(run)).chunks(max_bytes))
    assert chunks == ([(0,), (2,), (5,)] if max_bytes == 1 else [(0, 2, 5)])


@pytest.mark.parametrize(
    ("kind", "label", "message"),
    [(None, None, "has no labels, but a direction"), ("numeric", 0.5, "has numeric labels, but a direction")],
)
def test_a_run_without_classes_is_refused(
    rows: MadeRows, tmp_path: Path, kind: Any, label: Any, message: str
) -> None:
    made = replace(rows, labels=[label] * len(rows.labels), label_kind=kind)
    run = open_run(write_run(tmp_path / "run", made))
    with pytest.raises(RunError, match=message):
        ContrastSource(run)


@pytest.mark.parametrize("rows_filter", [RowFilter(), RowFilter(last=True)])
def test_a_train_split_of_one_class_is_refused(rows_filter: RowFilter, tmp_path: Path) -> None:
    rows = paired_rows(20)
    splits: Any = ["train" if label == "true" else "test" for label in rows.labels]
    source = ContrastSource(open_run(write_run(tmp_path / "run", rows.with_splits(splits))), rows=rows_filter)
    with pytest.raises(RunError, match="the train split has 0 rows of 'false' and 20 of 'true'"):
        source.contrast((0,))


def test_a_layer_that_the_run_lacks_is_refused(run: Path) -> None:
    with pytest.raises(SettingsError, match="layers 3 were asked for"):
        ContrastSource(open_run(run), layers=[0, 3])
