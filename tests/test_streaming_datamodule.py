from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from easysteer_data import StreamingDataModule
from easysteer_data.errors import RunError, SettingsError
from tests.recorder import Recorder, trainer
from tests.runs import MadeRows, random_rows, write_run

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers")


@pytest.fixture(scope="module")
def rows() -> MadeRows:
    return random_rows()


@pytest.fixture(scope="module")
def root(rows: MadeRows, tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_run(tmp_path_factory.mktemp("run") / "run", rows).as_uri()


def order(rows: MadeRows, batches: list[Any]) -> list[int]:
    place = {
        pair: row for row, pair in enumerate(zip(rows.prompt.tolist(), rows.position.tolist(), strict=True))
    }
    return [
        place[pair]
        for b in batches
        for pair in zip(b["prompt"].tolist(), b["position"].tolist(), strict=True)
    ]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_the_trainer_is_served_every_row_once_an_epoch_in_another_order(
    rows: MadeRows, root: str, tmp_path: Path, num_workers: int
) -> None:
    recorder = Recorder()
    data = StreamingDataModule(
        root, 2, batch_size=8, num_workers=num_workers, dtype="float64", cache=tmp_path / "cache"
    )
    fitting = trainer(2, num_sanity_val_steps=0)
    fitting.fit(recorder, datamodule=data)

    orders = {epoch: order(rows, batches) for epoch, batches in recorder.epochs.items()}
    assert [sorted(one) for one in orders.values()] == [rows.rows_of("train").tolist()] * 2
    assert orders[0] != orders[1]
    for epoch, batches in recorder.epochs.items():
        x = torch.cat([batch["x"] for batch in batches])
        assert x.dtype == torch.float64
        np.testing.assert_array_equal(x, rows.x[orders[epoch], 1])
    expected = float(rows.x[rows.rows_of("validation"), 1].astype(np.float64).sum())
    assert float(fitting.callback_metrics["total"]) == pytest.approx(expected, abs=1e-4)
    assert any((tmp_path / "cache").iterdir())


def test_without_a_trainer_each_iteration_is_another_epoch(rows: MadeRows, root: str) -> None:
    loader = StreamingDataModule(root, 0, batch_size=8).train_dataloader()
    first, second = order(rows, [*loader]), order(rows, [*loader])
    assert sorted(first) == sorted(second)
    assert first != second
    again = StreamingDataModule(root, 0, batch_size=8).train_dataloader()
    assert order(rows, [*again]) == first
    assert len(again) == len([*again])


def test_what_the_run_is_can_be_asked_and_secrets_are_not_saved(root: str) -> None:
    data = StreamingDataModule(root, 0, options={"auto_mkdir": True})
    data.setup()
    assert (data.width, data.label.names) == (8, ("false", "true"))
    assert "options" not in data.hparams


def test_a_layer_that_is_not_there_and_an_unknown_dtype_are_refused(root: str) -> None:
    with pytest.raises(RunError, match=r"holds no layer 1 of hidden_states: \(0, 2, 5\)"):
        StreamingDataModule(root, 1).setup()
    with pytest.raises(SettingsError, match="dtype is 'int8'"):
        StreamingDataModule(root, 0, dtype="int8")  # type: ignore[arg-type]
