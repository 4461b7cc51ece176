"""Lightning's loggers by name. Knows which package each needs."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

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
    uri = settings.uri or f"file:{(out / 'mlflow').resolve()}"
    return MLFlowLogger(experiment_name=settings.project, run_name=name, tracking_uri=uri)


def close_logger(logger: Logger) -> None:
    """Write what a logger still holds; nothing may be logged after it."""
    logger.finalize("success")
    if isinstance(logger, _TensorBoard):
        logger.experiment.close()


def _is_installed(kind: str) -> bool:
    return any(find_spec(package) for package in _PACKAGES[kind])
