from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Trainer
from torch.utils.data import DataLoader

from easysteer_data.datamodule import ActivationDataModule
from easysteer_data.errors import RunError, SettingsError
from easysteer_data.probes import LinearProbe
from easysteer_data.probes.standardise import Moments
from tests.runs import MadeRows, labelled_rows, write_run

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers")


@pytest.fixture(scope="module")
def rows() -> MadeRows:
    return labelled_rows((1.0, 3.0))


@pytest.fixture(scope="module")
def run(rows: MadeRows, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("run") / "run", rows)


def trainer(**options: Any) -> Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return Trainer(accelerator="cpu", max_epochs=2, enable_checkpointing=False, **quiet, **options)


def one_batch(batch: dict[str, torch.Tensor]) -> Any:
    return DataLoader([batch], batch_size=None)


def fit(probe: LinearProbe, batch: dict[str, torch.Tensor]) -> None:
    trainer(limit_val_batches=0).fit(probe, one_batch(batch), one_batch(batch))


def test_a_users_own_trainer_logs_every_layer(run: Path) -> None:
    # Batches of two rows: the two that Lightning's sanity check sees may well lack a class.
    probe = LinearProbe((0, 3), 12, ("false", "true"), C=0.1, solver="adam")
    datamodule = ActivationDataModule(run, batch_size=2)
    own = trainer()
    own.fit(probe, datamodule=datamodule)
    assert own.callback_metrics.keys() == {
        "train/loss",
        *(f"val/{name}/layer-{layer:03d}" for name in ("accuracy", "auroc", "loss") for layer in (0, 3)),
    }
    assert own.callback_metrics["val/auroc/layer-003"] > 0.9

    own.test(probe, datamodule=datamodule, verbose=False)
    assert {"test/auroc/layer-000", "test/accuracy/layer-003"} <= own.callback_metrics.keys()


def test_a_probe_without_a_datamodule_wants_its_mean_and_std_handed_in() -> None:
    x, y = torch.randn(64, 2, 5), torch.arange(64) % 2
    probe = LinearProbe((0, 1), 5, ("no", "yes"))
    with pytest.raises(SettingsError, match="knows no mean and std"):
        fit(probe, {"x": x, "y": y})

    probe.readout.standardise(Moments.of_rows(x))
    fit(probe, {"x": x, "y": y})
    assert probe.readout.n_train == 64
    assert (probe(x).squeeze(-1).sigmoid().mean(dim=0) - 0.5).abs().max() < 1e-4


def test_moments_of_another_shape_are_refused() -> None:
    probe = LinearProbe((0, 1), 5, ("no", "yes"))
    with pytest.raises(
        SettingsError, match=r"are of \[layers, width\] = \[1, 5\], the probe's rows of \[2, 5\]"
    ):
        probe.readout.standardise(Moments.of_rows(torch.randn(3, 5)))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"y": None}, RunError, "the rows have no labels"),
        ({"y": torch.rand(64)}, RunError, "labels are numbers, but this probe needs classes"),
        ({"y": torch.arange(64) % 3}, RunError, r"of none of the probe's classes \(no, yes\)"),
        ({"y": torch.arange(64) % 2 - 1}, RunError, "rows without a label"),
        ({"x": torch.randn(64, 5)}, SettingsError, r"\[1, 5\], the probe's are \[2, 5\]"),
        ({"x": torch.full((64, 2, 5), torch.nan)}, SettingsError, "layer 7: no minimum found.*gradient nan"),
    ],
)
def test_a_batch_that_a_probe_can_not_learn_from_is_refused(
    change: dict[str, Any], error: type[Exception], message: str
) -> None:
    batch = {"x": torch.randn(64, 2, 5), "y": torch.arange(64) % 2} | change
    probe = LinearProbe((7, 8), 5, ("no", "yes"))
    probe.readout.standardise(Moments.of_rows(torch.randn(64, 2, 5)))
    with pytest.raises(error, match=message):
        fit(probe, {name: values for name, values in batch.items() if values is not None})


def test_a_validation_loader_of_one_class_is_refused() -> None:
    x = torch.randn(64, 2, 5)
    probe = LinearProbe((0, 1), 5, ("no", "yes"))
    with pytest.raises(RunError, match="split 'validation': its rows are 64 of 'no', 0 of 'yes'"):
        trainer().validate(probe, one_batch({"x": x, "y": torch.zeros(64, dtype=torch.int64)}))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"label_names": ("only",)}, r"at least two classes, found \['only'\]"),
        ({"solver": "sgd"}, "solver is 'sgd'; choose one of lbfgs, adam"),
        ({"C": 0.0}, "C must be above zero, found 0.0"),
        ({"C": float("nan")}, "found nan"),
        ({"lr": -1.0}, "lr must be above zero, found -1.0"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        LinearProbe(**{"layer_ids": (0,), "width": 5, "label_names": ("no", "yes")} | settings)
