"""A run in a notebook: against the arrays that were written."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch

import easysteer_data
from easysteer_data import ActivationDataModule, open_run, shards
from easysteer_data.errors import RunError, SettingsError
from easysteer_data.types import SPLITS
from tests.runs import MadeRows, random_rows, write_run

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def made() -> MadeRows:
    fields = [{"city": f"city {i}", "text": i} for i in range(50)]
    return replace(random_rows(), fields=fields, texts=[f"text of {i} & <b>" for i in range(50)])


@pytest.fixture(scope="module")
def run(made: MadeRows, tmp_path_factory: pytest.TempPathFactory) -> easysteer_data.Run:
    return open_run(write_run(tmp_path_factory.mktemp("runs") / "run", made))


def test_an_opened_run_is_one_for_every_room(run: easysteer_data.Run) -> None:
    assert isinstance(run, easysteer_data.Run)
    assert isinstance(run, shards.Run)
    assert run.layers == (0, 2, 5)
    assert repr(pickle.loads(pickle.dumps(run))) == repr(run)


@pytest.mark.parametrize("split", [*SPLITS, None])
def test_rows_are_those_of_one_layer_and_split(
    run: easysteer_data.Run, made: MadeRows, split: str | None
) -> None:
    rows = np.arange(len(made.x)) if split is None else made.rows_of(split)  # type: ignore[arg-type]
    found = run.rows(layer=5, split=split)  # type: ignore[arg-type]
    np.testing.assert_array_equal(found.numpy(), made.x[rows, 2])
    table = run.row_table(split)  # type: ignore[arg-type]
    np.testing.assert_array_equal(table["prompt"], made.prompt[rows])
    np.testing.assert_array_equal(table["position"], made.position[rows])
    np.testing.assert_array_equal(table["token_id"], made.token_id[rows])
    assert list(table["label"]) == [made.labels[prompt] for prompt in made.prompt[rows]]
    assert set(table["split"]) == ({split} if split else set(SPLITS))


def test_the_table_has_a_line_a_prompt_and_a_column_a_field(run: easysteer_data.Run, made: MadeRows) -> None:
    table = run.table()
    assert list(table.index) == list(range(50))
    assert list(table["split"]) == list(made.splits)
    assert list(table["label"]) == list(made.labels)
    assert list(table["text"]) == made.texts
    assert list(table["city"]) == [f"city {i}" for i in range(50)]
    assert list(table["field.text"]) == list(range(50))
    assert "fields" not in table
    assert list(run.table("test").index) == [i for i, split in enumerate(made.splits) if split == "test"]


def test_a_datamodule_of_the_run_takes_every_option(run: easysteer_data.Run, made: MadeRows) -> None:
    data = run.datamodule(layers=2, batch_size=None)
    assert isinstance(data, ActivationDataModule)
    (batch,) = data.test_dataloader()
    torch.testing.assert_close(batch["x"], torch.tensor(made.x[made.rows_of("test"), 1]))


def test_a_run_tells_what_it_holds(run: easysteer_data.Run, made: MadeRows) -> None:
    told = {line.split()[0]: line for line in repr(run).splitlines()[1:]}
    n_bytes = sum(path.stat().st_size for path in run.path.rglob("*") if path.parent.name != run.path.name)
    assert repr(run).splitlines()[0] == f"Run({str(run.path)!r})"
    assert "made-up-model" in told["model"]
    assert "made-up-corpus" in repr(run)
    assert f"{len(made.x)} a layer, stored" in told["rows"]
    assert "3 layers (0, 2, 5) of width 8, float32" in told["hidden_states"]
    assert "train 30, validation 10, test 10" in told["splits"]
    assert "false 25, true 25" in told["labels"]
    assert float(told["size"].split()[1]) == pytest.approx(n_bytes / 1e9, rel=0.2)


class _Texts(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:  # noqa: ARG002
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_the_html_tells_the_same_and_escapes_names(tmp_path: Path, made: MadeRows) -> None:
    hostile = replace(made, names=("false", "<script>x</script>"), labels=["<script>x</script>"] * 50)
    run = open_run(write_run(tmp_path / "run <b>", hostile))
    parser = _Texts()
    parser.feed(run._repr_html_())
    assert set(parser.tags) == {"table", "caption", "code", "tbody", "tr", "th", "td"}
    for line in repr(run).splitlines()[1:]:
        name, what = line.strip().split("  ", maxsplit=1)
        assert name in parser.texts
        assert what.strip() in parser.texts
    assert str(run.path) in parser.texts


def test_what_is_not_there_is_refused_by_name(
    run: easysteer_data.Run, tmp_path: Path, made: MadeRows
) -> None:
    with pytest.raises(SettingsError, match="split is 'tset'; choose one of train, validation, test"):
        run.rows(layer=0, split="tset")  # type: ignore[arg-type]
    with pytest.raises(RunError, match="holds no layer 1 of hidden_states"):
        run.rows(layer=1)
    with pytest.raises(RunError, match="holds no router_logits"):
        run.rows(layer=0, stream="router_logits")
    bare = open_run(write_run(tmp_path / "run", made, store_rows=False))
    assert "statistics only" in repr(bare)
    with pytest.raises(RunError, match="statistics only"):
        bare.rows(layer=0)


def test_without_pandas_tables_name_the_extra_and_rows_are_read(run: easysteer_data.Run) -> None:
    code = (
        "import sys; sys.modules['pandas'] = None\n"
        f"import easysteer_data; run = easysteer_data.open_run({str(run.path)!r})\n"
        "print(tuple(run.rows(layer=0).shape), 'lightning' in sys.modules)\n"
        "try: run.table()\n"
        "except easysteer_data.errors.SettingsError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    shape, message = done.stdout.splitlines()
    assert shape == f"{(run.n_rows, 8)} False"
    assert message.endswith("pip install 'easysteer-data[notebook]'")
