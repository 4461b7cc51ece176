"""The data modules as LightningCLI makes them from a command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from lightning.pytorch.cli import LightningCLI

from easysteer_data import ActivationDataModule, StreamingDataModule
from tests.recorder import Recorder
from tests.runs import random_rows, write_run

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers")
QUIET = ["--trainer.logger=false", "--trainer.enable_checkpointing=false", "--trainer.max_epochs=1"]


@pytest.mark.parametrize(
    ("datamodule", "arguments"),
    [
        (ActivationDataModule, ["--data.run={run}", "--data.layers=[2, 5]", "--data.rows={last: true}"]),
        (StreamingDataModule, ["--data.root=file://{run}", "--data.layer=2", "--data.dtype=float64"]),
    ],
)
def test_a_command_line_trains_on_the_rows_that_it_names(
    datamodule: type, arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_run(tmp_path / "run", random_rows())
    given = [argument.replace("{run}", str(run)) for argument in arguments]
    monkeypatch.setattr("sys.argv", ["train.py", "fit", *QUIET, "--data.batch_size=8", *given])
    cli = LightningCLI(
        Recorder,
        datamodule,
        save_config_callback=None,
        seed_everything_default=0,
        trainer_defaults={"enable_progress_bar": False, "accelerator": "cpu"},
    )
    batches = cli.model.epochs[0]
    assert sum(len(batch["prompt"]) for batch in batches) > 0
    assert all(len(batch["x"]) <= 8 for batch in batches)
