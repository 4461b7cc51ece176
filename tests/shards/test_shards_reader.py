from __future__ import annotations

import json
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import get_args

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from easysteer_data.errors import BadShardError, RunError
from easysteer_data.shards import LabelHeader, Run, RunWriter, StreamHeader, open_run
from easysteer_data.types import SPLITS, Stream
from tests.shards.made import Made, files_of, make_run, memory_folder, same_bits, write_run

SHAPES = st.builds(
    StreamHeader,
    st.sets(st.integers(0, 30), min_size=1, max_size=3).map(lambda ids: tuple(sorted(ids))),
    st.integers(1, 9),
    st.sampled_from(["float32", "float16", "bfloat16"]),
)
STREAMS = st.dictionaries(st.sampled_from(get_args(Stream)), SHAPES, min_size=1, max_size=2)


@pytest.fixture(scope="module")
def made() -> Made:
    return make_run(
        streams={
            "hidden_states": StreamHeader((0, 3, 12), 6, "bfloat16"),
            "router_logits": StreamHeader((3,), 2, "float32"),
        }
    )


@pytest.fixture(scope="module")
def folder(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run")
    write_run(path, made)
    return path


@pytest.fixture
def run(folder: Path) -> Run:
    return open_run(folder)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=20),
    STREAMS,
    st.integers(1, 5),
    st.integers(1, 200),
    st.data(),
)
def test_gathered_rows_are_those_of_plain_indexing(
    n_rows: list[int],
    streams: dict[Stream, StreamHeader],
    n_shards: int,
    pack_bytes: int,
    data: st.DataObject,
) -> None:
    made = make_run(n_rows, streams, n_shards=n_shards, pack_bytes=pack_bytes)
    with memory_folder() as folder:
        write_run(Path(folder), made)
        run = open_run(folder)
        assert run.n_rows == sum(n_rows)
        assert all(torch.equal(getattr(run.index, c), getattr(made.index, c)) for c in made.index.__slots__)
        for stream, shape in streams.items():
            places = st.integers(0, max(run.n_rows - 1, 0))
            n_most = 30 if run.n_rows else 0
            rows = torch.tensor(data.draw(st.lists(places, max_size=n_most)), dtype=torch.int64)
            layer_ids = data.draw(st.lists(st.sampled_from(shape.layer_ids), min_size=1, max_size=4))
            expected = torch.stack([made.rows[stream][layer_id][rows] for layer_id in layer_ids], dim=1)
            assert same_bits(run.gather(stream, layer_ids, rows), expected)


def test_a_run_says_what_it_holds(run: Run, folder: Path) -> None:
    assert run.path == folder
    assert run.streams == {"hidden_states": (0, 3, 12), "router_logits": (3,)}
    assert run.layers == (0, 3, 12)
    assert run.layer_ids("router_logits") == (3,)
    assert repr(run) == (
        f"Run({str(folder)!r}, 17 rows of 8 prompts in 3 shards; "
        "hidden_states: 3 layers of width 6, bfloat16; router_logits: 1 layers of width 2, float32; "
        "labels no, yes)"
    )


def test_gathered_rows_outlive_the_run(folder: Path, made: Made) -> None:
    run = open_run(folder)
    rows = run.gather("hidden_states", [3], torch.arange(17))
    index = run.index
    del run
    assert same_bits(rows[:, 0], made.rows["hidden_states"][3])
    assert torch.equal(index.token_id, made.index.token_id)


def test_labels_of_rows_are_those_of_their_prompts(run: Run) -> None:
    classes = {"no": 0, "yes": 1, None: -1}
    labels = run.prompts(["label"])["label"].to_pylist()
    assert run.labels is not None
    assert run.labels.dtype == torch.int64
    assert run.labels.tolist() == [classes[labels[prompt]] for prompt in run.index.prompt.tolist()]


def test_numeric_labels_are_float32_and_nan_where_there_is_none(tmp_path: Path) -> None:
    made = make_run([1, 2, 1, 1], label=LabelHeader("numeric"))
    write_run(tmp_path, made)
    run = open_run(tmp_path)
    assert run.labels is not None
    assert run.labels.dtype == torch.float32
    np.testing.assert_array_equal(run.labels.numpy(), [0.5, -2, -2, np.nan, 0.5])
    assert run.prompts(["label_value"])["label_value"].to_pylist() == [0.5, -2, None, 0.5]


def test_a_run_without_labels_has_none(tmp_path: Path) -> None:
    write_run(tmp_path, make_run(label=LabelHeader()))
    run = open_run(tmp_path)
    assert run.labels is None
    assert repr(run).endswith("no labels)")


def test_the_split_of_a_row_is_its_prompts_split(run: Run, made: Made) -> None:
    splits = [SPLITS[code] for code in run.row_splits()]
    assert splits == [made.prompts[prompt].prompt.split for prompt in made.index.prompt.tolist()]


def test_the_prompt_table_is_one_table_in_order(run: Run, made: Made) -> None:
    table = run.prompts()
    assert isinstance(table, pa.Table)
    assert table["text"].to_pylist() == [captured.prompt.text for captured in made.prompts]
    assert run.prompts(["text", "id"]).column_names == ["text", "id"]
    with pytest.raises(RunError, match="no column 'texts', only index, id"):
        run.prompts(["texts"])


@pytest.mark.parametrize(
    ("stream", "layer_id", "message"),
    [
        ("hidden_states", 4, "no layer 4 of hidden_states; it holds 0, 3, 12"),
        ("attention_heads", 0, "only hidden"),
    ],
)
def test_what_a_run_does_not_hold_is_named(run: Run, stream: Stream, layer_id: int, message: str) -> None:
    with pytest.raises(RunError, match=message):
        run.gather(stream, [layer_id], torch.tensor([0]))
    with pytest.raises(RunError):
        run.statistics(stream, layer_id)


@pytest.mark.parametrize("row", [-1, 17, 2**62, -(2**63)])
def test_rows_that_are_not_there_are_refused(run: Run, row: int) -> None:
    with pytest.raises(IndexError, match="rows must be in 0 to 16"):
        run.gather("hidden_states", [0], torch.tensor([3, row]))


def test_rows_of_another_type_are_refused(run: Run) -> None:
    for rows in (torch.tensor([1], dtype=torch.int32), torch.tensor([[1]]), torch.tensor([True])):
        with pytest.raises(TypeError, match="rows must be int64"):
            run.gather("hidden_states", [0], rows)


def test_a_run_without_a_row_reads_as_empty(tmp_path: Path) -> None:
    write_run(tmp_path, make_run([0, 0, 0]))
    run = open_run(tmp_path)
    assert run.gather("hidden_states", [0, 3], torch.empty(0, dtype=torch.int64)).shape == (0, 2, 6)
    assert len(run.index) == len(run.row_splits()) == 0
    assert run.statistics("hidden_states", 0).n_rows == 0


class Batches(torch.utils.data.Dataset[torch.Tensor]):
    def __init__(self, run: Run) -> None:
        self.run = run

    def __len__(self) -> int:
        return self.run.n_rows

    def __getitem__(self, row: int) -> torch.Tensor:
        return self.run.gather("hidden_states", [3, 0], torch.tensor([row]))[0]


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_loader_workers_read_the_same_rows(run: Run, made: Made, start: str) -> None:
    data = Batches(run)
    before = data[3]  # the parent's files are mapped
    loader = DataLoader(data, batch_size=5, num_workers=1, multiprocessing_context=start)
    rows = torch.cat([*loader])
    assert same_bits(rows[3], before)
    assert same_bits(rows, torch.stack([made.rows["hidden_states"][layer] for layer in (3, 0)], dim=1))


def test_a_pickled_run_carries_no_rows(run: Run) -> None:
    fresh = len(ForkingPickler.dumps(run))
    run.gather("hidden_states", [0, 3, 12], torch.arange(17))
    assert len(run.index) == 17
    assert run.labels is not None
    assert len(ForkingPickler.dumps(run)) == fresh


def test_a_thousand_shards_need_no_thousand_open_files(tmp_path: Path) -> None:
    made = make_run([1] * 40, n_shards=40)
    write_run(tmp_path, made)
    run = open_run(tmp_path)
    before = len([*Path("/proc/self/fd").iterdir()])
    rows = run.gather("hidden_states", [0, 3, 12], torch.arange(40))
    assert len([*Path("/proc/self/fd").iterdir()]) == before
    assert same_bits(rows[:, 1], made.rows["hidden_states"][3])


def test_statistics_are_those_of_numpy(run: Run, made: Made) -> None:
    for stream, layers in made.rows.items():
        for layer_id, rows in layers.items():
            x = rows.double().numpy()
            found = run.statistics(stream, layer_id)
            assert found.n_rows == 17
            np.testing.assert_allclose(found.mean, x.mean(axis=0), rtol=1e-12)
            np.testing.assert_allclose(found.mean_square, (x**2).mean(axis=0), rtol=1e-12)
            np.testing.assert_allclose(found.mean_norm, np.linalg.norm(x, axis=1).mean(), rtol=1e-12)
            assert found.max_abs == abs(x).max()


def test_an_unfinished_run_is_refused_as_such(tmp_path: Path, made: Made) -> None:
    writer = RunWriter.open(tmp_path, made.header)
    writer.write(made.shards[0])
    with pytest.raises(RunError, match=r"unfinished, 1 of 3 shards are committed.*capture again"):
        open_run(tmp_path)


def test_folders_without_a_run_are_refused_as_such(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no such folder"):
        open_run(tmp_path / "none")
    with pytest.raises(RunError, match="is no run folder"):
        open_run(tmp_path)


def test_a_manifest_of_another_schema_version_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path, make_run())
    manifest = json.loads((tmp_path / "manifest.json").read_bytes())
    (tmp_path / "manifest.json").write_text(json.dumps(manifest | {"schema_version": 9}))
    with pytest.raises(RunError, match="schema version 9, but this package reads 2; use the version"):
        open_run(tmp_path)


def test_reading_changes_no_file(folder: Path) -> None:
    before = files_of(folder)
    run = open_run(folder)
    run.gather("hidden_states", [0], torch.arange(17)).zero_()
    run.index.prompt.zero_()
    assert files_of(folder) == before


def test_a_file_that_shrinks_after_opening_is_an_error_and_no_crash(tmp_path: Path, made: Made) -> None:
    write_run(tmp_path, made)
    run = open_run(tmp_path)
    path = tmp_path / "hidden_states" / "layer-003" / "shard-000001.tar"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(BadShardError, match=r"shard-000001\.tar: \d+ bytes, should be"):
        run.gather("hidden_states", [3], torch.tensor([0]))
    path.unlink()
    with pytest.raises(BadShardError, match=r"shard-000001\.tar: can't be opened"):
        run.gather("hidden_states", [3], torch.tensor([0]))
