from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from easysteer_data.datamodule import ActivationDataModule
from easysteer_data.errors import SettingsError
from easysteer_data.probes import fit_probe, make_logger
from easysteer_data.settings import LoggerSettings, ProbeSettings
from tests.runs import labelled_rows, write_run


def test_probes_in_epochs_log_to_tensorboard_by_default_and_others_do_not(tmp_path: Path) -> None:
    assert make_logger(LoggerSettings(), tmp_path, "run", in_epochs=False) is None
    assert make_logger(LoggerSettings(kind="none"), tmp_path, "run", in_epochs=True) is None
    logger = make_logger(LoggerSettings(), tmp_path, "run", in_epochs=True)
    settings = ProbeSettings(solver="adam", max_epochs=2, bootstrap=0, control=False)
    run = write_run(tmp_path / "run", labelled_rows((1.0,)))
    fit_probe(ActivationDataModule(run, batch_size=64), settings, logger=logger)
    written = b"".join(
        path.read_bytes() for path in (tmp_path / "tensorboard").rglob("events.out.tfevents.*")
    )
    for name in (b"train/loss", b"val/auroc/layer-000", b"final/test/auroc/layer-000"):
        assert name in written
    (settings_file,) = (tmp_path / "tensorboard").rglob("hparams.yaml")
    assert "solver: adam" in settings_file.read_text()


@pytest.mark.parametrize("kind", ["wandb", "mlflow"])
def test_a_logger_that_is_not_installed_names_what_to_install(kind: str, tmp_path: Path) -> None:
    assert find_spec(kind) is None
    with pytest.raises(SettingsError, match=rf"logger={kind} needs.*pip install 'easysteer-data\[{kind}\]'"):
        make_logger(LoggerSettings(kind=kind), tmp_path, "run", in_epochs=False)  # type: ignore[arg-type]
