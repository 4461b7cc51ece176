from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from easysteer_data import ActivationDataModule, StreamingDataModule
from easysteer_data.errors import RunError, SettingsError
from easysteer_data.serving import NORMALISATIONS
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


FILTERS: list[dict[str, Any]] = [
    {"rows": {"positions": [0, -1]}},
    {"rows": {"last": True}, "labelled_only": True},
    {"rows": {"token_ids": list(range(1000, 1200, 7))}},
    {"rows": {"fields": {"topic": ["a", "b"]}, "limit": 20}},
]


@pytest.mark.parametrize("options", FILTERS, ids=["positions", "last", "tokens", "fields"])
def test_a_stream_serves_the_rows_that_a_mapped_run_serves(tmp_path: Path, options: dict[str, Any]) -> None:
    made = random_rows()
    labels = [None if i % 7 == 0 else label for i, label in enumerate(made.labels)]
    made = replace(made, labels=labels, fields=[{"topic": "abc"[i % 3]} for i in range(50)])
    run = write_run(tmp_path / "run", made)
    streamed = StreamingDataModule(run.as_uri(), 2, batch_size=8, **options)
    mapped = ActivationDataModule(run, 2, batch_size=8, **options)
    for name in ("train_dataloader", "val_dataloader", "predict_dataloader"):
        expected = order(made, [*getattr(mapped, name)()])
        assert sorted(order(made, [*getattr(streamed, name)()])) == sorted(expected)
        assert 0 < len(expected) < len(made.x)


@pytest.mark.parametrize("method", NORMALISATIONS)
def test_a_stream_is_normalised_as_a_mapped_run_is(rows: MadeRows, root: str, method: Any) -> None:
    streamed = StreamingDataModule(root, 2, batch_size=64, normalise=method, dtype="float64")
    mapped = ActivationDataModule(Path(root[7:]), 2, batch_size=64, normalise=method, dtype="float64")
    (one,), (other,) = streamed.test_dataloader(), mapped.test_dataloader()
    assert order(rows, [one]) == order(rows, [other])
    torch.testing.assert_close(one["x"], other["x"])


def test_statistics_of_all_training_rows_do_not_normalise_some_of_them(root: str) -> None:
    some = StreamingDataModule(root, 0, rows={"positions": [0]}, normalise="center")
    with pytest.raises(SettingsError, match=r"normalise='center' .* or a local copy of the run"):
        some.train_dataloader()


def test_the_trainer_predicts_every_row(rows: MadeRows, root: str) -> None:
    batches = trainer(1).predict(Recorder(), datamodule=StreamingDataModule(root, 2, batch_size=7))
    assert torch.cat(batches).tolist() == rows.prompt.tolist()


# Fits go on without the callback that keeps every step.
@pytest.mark.filterwarnings("ignore:.*callbacks used to create the checkpoint")
def test_a_fit_stopped_at_any_step_goes_on_with_exactly_the_steps_that_are_left(
    rows: MadeRows, root: str, tmp_path: Path
) -> None:
    def fit(checkpoint: Path | None = None, folder: Path | None = None, **options: Any) -> list[Any]:
        recorder, fitting = Recorder(), trainer(3, folder, num_sanity_val_steps=0)
        data = StreamingDataModule(root, 2, **{"batch_size": 24, "buffer_rows": 30} | options)
        fitting.fit(recorder, datamodule=data, ckpt_path=checkpoint, weights_only=True)
        return [(epoch, order(rows, [batch])) for epoch, all_ in recorder.epochs.items() for batch in all_]

    whole = fit(folder=tmp_path)
    assert len(whole) == 12
    for step in (1, 3, 4, 6, len(whole)):
        assert fit(tmp_path / f"step-{step}.ckpt") == whole[step:]
    with pytest.raises(
        SettingsError, match=r"within epoch 0 of a stream, .*: batch_size was 24 and is 8; go on"
    ):
        fit(tmp_path / "step-2.ckpt", batch_size=8)
    assert {epoch for epoch, _ in fit(tmp_path / "step-4.ckpt", batch_size=48)} == {1, 2}


def test_a_plain_loop_goes_on_from_a_loaders_state(rows: MadeRows, root: str) -> None:
    def loader() -> Any:
        return StreamingDataModule(root, 0, batch_size=8).train_dataloader()

    whole = loader()
    epochs = [[order(rows, [batch]) for batch in whole] for _ in range(2)]
    first, batches = loader(), []
    for batch in first:
        batches.append(order(rows, [batch]))
        if len(batches) == 3:
            break
    rest = loader()
    rest.load_state_dict(first.state_dict())
    assert [order(rows, [batch]) for batch in rest] == epochs[0][3:]
    assert [order(rows, [batch]) for batch in rest] == epochs[1]


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
