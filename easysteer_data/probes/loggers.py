"""Lightning's loggers by name. Knows which package each needs."""

from __future__ import annotations

import os
from argparse import Namespace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger, MLFlowLogger, TensorBoardLogger, WandbLogger

from easysteer_data.errors import SettingsError
from easysteer_data.settings import LoggerSettings


class _TensorBoard(TensorBoardLogger):
    """Stays open after training, for the figures of the fitted probe.

    A closed one begins another file at the next figure, which is named by the second: it replaces the first
    if that was begun in the same one.
    """

    def finalize(self, status: str) -> None:
        """Write what there is."""
        self.experiment.flush()
        if status == "success":
            self.save()


class _MLflow(MLFlowLogger):
    """Logs each parameter once, as the probe resolved it: MLflow refuses another value of the same name."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._logged: set[str] = set()

    def log_hyperparams(self, params: dict[str, Any] | Namespace) -> None:
        """Log those that are not there yet."""
        given = vars(params) if isinstance(params, Namespace) else params
        new = {key: value for key, value in given.items() if key not in self._logged}
        self._logged |= new.keys()
        super().log_hyperparams(new)


# Either will do.
_PACKAGES = {
    "tensorboard": ("tensorboard", "tensorboardX"),
    "wandb": ("wandb",),
    "mlflow": ("mlflow", "mlflow_skinny"),
}


def make_logger(settings: LoggerSettings, out: Path, name: str, in_epochs: bool) -> Logger | None:
    """The logger that the settings ask for, None for none.

    Args:
        settings: which one.
        out: folder of the experiment; logs on disk lie inside.
        name: the experiment's.
        in_epochs: whether the probe is trained in epochs: only then does "default" log.

    Raises:
        SettingsError: the logger's package is not installed; the message tells how to get it.
    """
    kind = settings.kind
    if kind == "default":
        kind = "tensorboard" if in_epochs and _is_installed("tensorboard") else "none"
    if kind == "none":
        return None
    if not _is_installed(kind):
        raise SettingsError(
            f"logger={kind} needs the package {_PACKAGES[kind][-1]}, which is not installed: pip install"
            f" 'easysteer-data[{kind}]', or use logger=none"
        )
    if kind == "tensorboard":
        return _TensorBoard(str(out), name="tensorboard", default_hp_metric=False)
    if kind == "wandb":
        return WandbLogger(name=name, save_dir=out, project=settings.project, offline=settings.offline)
    if settings.uri is None:
        # MLflow 3 refuses folders otherwise; a database would need the whole of MLflow.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = settings.uri or f"file:{(out / 'mlflow').resolve()}"
    return _MLflow(experiment_name=settings.project, run_name=name, tracking_uri=uri)


def close_logger(logger: Logger) -> None:
    """Write what a logger still holds; nothing may be logged after it."""
    logger.finalize("success")
    if isinstance(logger, _TensorBoard):
        logger.experiment.close()


def _is_installed(kind: str) -> bool:
    return any(find_spec(package) for package in _PACKAGES[kind])
