from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from easysteer_data.data_options import LoaderOptions, RowFilter, RowOrder, coerce_options
from easysteer_data.errors import BadShardError, RunError, SettingsError
from easysteer_data.serving.rows import choose_rows
from easysteer_data.serving.split_rows import SplitRows
from easysteer_data.shards import LabelHeader, Run, open_run
from easysteer_data.types import SPLITS, Prompt
from scripts.fuzz import vouch_for
from tests.shards.made import Made, make_run, write_run

# (prompt, position, token id, its prompt) -> whether the row is wanted.
Wanted = Callable[[int, int, int, Prompt], bool]


@pytest.fixture(scope="module")
def made() -> Made:
    made = make_run(n_rows=(3, 0, 2, 5, 1, 4, 0, 2, 6, 1))
    shards = []
    for shard in made.shards:
        prompts = [
            replace(
                captured,
                prompt=replace(
                    captured.prompt, fields={"topic": "abc"[captured.prompt.index % 3], "hard": True}
                ),
            )
            for captured in shard.prompts
        ]
        shards.append(replace(shard, prompts=tuple(prompts)))
    return replace(made, shards=tuple(shards), prompts=tuple(p for shard in shards for p in shard.prompts))


@pytest.fixture(scope="module")
def run(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("run")
    write_run(folder, made)
    return open_run(folder)


def expected(made: Made, wanted: Wanted) -> list[int]:
    index = made.index
    columns = (index.prompt.tolist(), index.position.tolist(), index.token_id.tolist())
    return [
        row
        for row, (prompt, position, token) in enumerate(zip(*columns, strict=True))
        if wanted(prompt, position, token, made.prompts[prompt].prompt)
    ]


TOKENS = tuple(make_run(n_rows=(3, 0, 2, 5, 1, 4, 0, 2, 6, 1)).index.token_id[[0, 7, 11]].tolist())


@pytest.mark.parametrize(
    ("rows", "wanted"),
    [
        ({}, lambda *_: True),
        ({"positions": [0, 6]}, lambda _, position, *__: position in (0, 6)),
        ({"positions": [-1]}, lambda _, position, __, prompt: position == len(prompt.token_ids) - 1),
        (
            {"positions": [3, -2]},
            lambda _, position, __, prompt: position in (3, len(prompt.token_ids) - 2),
        ),
        ({"positions": []}, lambda *_: False),
        ({"token_ids": TOKENS}, lambda _, __, token, ___: token in TOKENS),
        ({"fields": {"topic": "b"}}, lambda _, __, ___, prompt: prompt.fields["topic"] == "b"),
        (
            {"fields": {"topic": ["a", "c"], "hard": True, "group": ["group-1", "group-4"]}},
            lambda _, __, ___, prompt: (
                prompt.fields["topic"] != "b" and prompt.group in ("group-1", "group-4")
            ),
        ),
        ({"fields": {"id": "id-3"}, "positions": [3]}, lambda i, position, *_: (i, position) == (3, 3)),
        ({"fields": {"label": "yes"}}, lambda _, __, ___, prompt: prompt.label == "yes"),
    ],
)
@pytest.mark.parametrize("split", [None, *SPLITS])
def test_rows_are_those_that_plain_python_lets_through(
    made: Made, run: Run, rows: Any, wanted: Wanted, split: Any
) -> None:
    found = choose_rows(run, split, RowFilter(**rows)).tolist()
    assert found == expected(made, lambda *row: wanted(*row) and (split is None or row[3].split == split))


def test_the_last_row_of_each_prompt_is_the_last_that_the_run_holds(made: Made, run: Run) -> None:
    prompt = made.index.prompt.tolist()
    last = {number: row for row, number in enumerate(prompt)}
    assert choose_rows(run, None, RowFilter(last=True)).tolist() == sorted(last.values())


def test_rows_without_a_label_are_left_out(made: Made, run: Run) -> None:
    found = choose_rows(run, None, RowFilter(), labelled_only=True).tolist()
    assert found == expected(made, lambda *row: row[3].label is not None)


def test_a_larger_limit_holds_all_rows_of_a_smaller_one(run: Run) -> None:
    limited = [set(choose_rows(run, None, RowFilter(limit=n), seed=3).tolist()) for n in (1, 5, 12, 99)]
    assert [len(rows) for rows in limited] == [1, 5, 12, run.n_rows]
    assert limited[0] < limited[1] < limited[2] < limited[3]
    other = set(choose_rows(run, None, RowFilter(limit=12), seed=4).tolist())
    assert other != limited[2]
    assert choose_rows(run, None, RowFilter(limit=12), seed=3).tolist() == sorted(limited[2])


def test_a_field_that_no_prompt_has_is_refused_with_those_that_there_are(run: Run) -> None:
    with pytest.raises(
        SettingsError, match=r"no prompt of .* has 'topci'; there are group, hard, id, label, topic"
    ):
        choose_rows(run, None, RowFilter(fields={"topci": "a"}))


def test_a_filter_that_nothing_passes_is_refused_with_the_counts(run: Run) -> None:
    rows = SplitRows(run, RowFilter(fields={"id": "id-3"}), RowOrder())
    with pytest.raises(
        RunError, match="no rows pass the filter in split 'test'; rows: train 0, validation 5"
    ):
        _ = rows["test"]


def test_blocks_are_the_packs_that_the_train_split_has_rows_of(tmp_path: Path) -> None:
    made = make_run(n_rows=(3, 0, 2, 5, 1, 4, 0, 2) * 5)
    write_run(tmp_path, made)
    indices = [json.loads(path.read_text()) for path in sorted((tmp_path / "index").iterdir())]
    ends = np.cumsum([pack["n_rows"] for index in indices for pack in index["packs"]])
    train = expected(made, lambda *row: row[3].split == "train")

    rows = SplitRows(open_run(tmp_path), RowFilter(), RowOrder(shuffle="blocks", window_rows=1))
    order = [train[place] for place in rows.train_order(0).tolist()]
    pack_of = ends.searchsorted(order, side="right").tolist()

    assert sorted(order) == train
    assert len(set(pack_of)) > 5
    assert len([*groupby(pack_of)]) == len(set(pack_of))  # each pack's rows come together
    assert pack_of != sorted(pack_of)
    assert rows.shuffle_quality(0, 2).n_blocks == len(set(pack_of))


def test_only_classes_can_be_balanced(tmp_path: Path) -> None:
    write_run(tmp_path, make_run(label=LabelHeader("numeric")))
    rows = SplitRows(open_run(tmp_path), RowFilter(), RowOrder(balance="undersample"))
    with pytest.raises(RunError, match="has numeric labels, but only classes can be balanced"):
        _ = rows.train_order


@pytest.mark.parametrize(
    ("cls", "given", "message"),
    [
        (RowFilter, {"limit": 0}, "rows.limit is 0; use at least 1"),
        (RowFilter, {"position": [1]}, r"unknown key x\.position; valid keys are positions, last"),
        (RowOrder, {"shuffle": "all"}, "order.shuffle is 'all'; choose one of rows, blocks, none"),
        (RowOrder, {"window_rows": 0}, "order.window_rows is 0"),
        (RowOrder, {"balance": "up"}, "order.balance is 'up'; choose one of none, undersample"),
        (LoaderOptions, {"start_method": "thread"}, "loading.start_method is 'thread'; choose one of fork"),
        (LoaderOptions, {"prefetch": 0}, "loading.prefetch is 0"),
    ],
)
def test_unusable_options_are_refused(cls: Any, given: Any, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        coerce_options(cls, given, "x")


@pytest.mark.parametrize("text", ["{", "[1]"])
def test_forged_fields_of_prompts_are_refused(tmp_path: Path, text: str) -> None:
    write_run(tmp_path, make_run())
    path = tmp_path / "prompts/shard-000000.parquet"
    table = pq.read_table(path)
    column = table.schema.get_field_index("fields")
    forged = pa.array([text] * len(table))
    pq.write_table(table.set_column(column, table.schema.field(column), forged), path)
    vouch_for(tmp_path, "prompts/shard-000000.parquet")
    with pytest.raises(BadShardError, match="fields that are no JSON"):
        choose_rows(open_run(tmp_path), None, RowFilter(fields={"topic": "a"}))
