"""Runs a stage under Hydra: composes its config, checks every key, builds settings, reports errors."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import hydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from easysteer_data.errors import EasySteerDataError, SettingsError
from easysteer_data.run_folders import local_out
from easysteer_data.settings import ExperimentSettings, build, unknown_key

from .sweep import JobTable, settings_of_job

OmegaConf.register_new_resolver("local_out", local_out, replace=True)

# An absolute folder works in the repo and in an installed wheel alike.
CONF = str(Path(__file__).resolve().parents[1] / "conf")
_QUIET = {"VLLM_LOGGING_LEVEL": "WARNING", "TORCH_CPP_LOG_LEVEL": "ERROR", "TOKENIZERS_PARALLELISM": "false"}

Stage = Callable[[ExperimentSettings], Mapping[str, object]]
"""Does a stage's work and returns what a table of several jobs should show of it."""


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a stage as cleanly as Ctrl-C does."""


def run_stage(config_name: str, stage: Stage) -> None:
    """Run `stage` with the settings that the command line describes; the whole body of a pipeline's main.

    An error that this package raised ends the process with its message and exit code 1, without a traceback;
    in a multirun the other jobs are run first. Ctrl-C ends it with code 130, SIGTERM with 143.
    """
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    warnings.filterwarnings("ignore", category=FutureWarning)
    signal.signal(signal.SIGTERM, _terminate)
    try:
        _refuse_unknown_overrides(config_name)
    except SettingsError as error:
        sys.stderr.write(f"SettingsError: {error}\n")
        raise SystemExit(1) from None
    jobs = JobTable()

    @hydra.main(version_base="1.3", config_path=CONF, config_name=config_name)
    def main(config: DictConfig) -> None:
        name = "the job"
        try:
            settings = settings_of(config)
            jobs.folder = Path(local_out(settings.out, settings.name))
            settings = settings_of_job(settings)
            name = settings.name
            jobs.rows[name] = stage(settings)
        except EasySteerDataError as error:
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
            jobs.failures[name] = f"{type(error).__name__}: {error}".partition("\n")[0]

    try:
        main()
    except KeyboardInterrupt as stop:
        _report_stop(stop)
        raise SystemExit(128 + (signal.SIGTERM if isinstance(stop, Terminated) else signal.SIGINT)) from None
    if len(jobs.rows) + len(jobs.failures) > 1:
        sys.stdout.write(f"\n{jobs}\n\nwritten: {jobs.write_csv()}\n")
    if jobs.failures:
        raise SystemExit(1)


def settings_of(config: DictConfig) -> ExperimentSettings:
    """Build typed settings from a composed config.

    Raises:
        SettingsError: an unknown key, a missing value ("???"), or a value of a wrong type.
    """
    missing = sorted(OmegaConf.missing_keys(config))
    if missing:
        raise SettingsError(f"{', '.join(missing)}: must be given, as {missing[0]}=...")
    values = OmegaConf.to_container(config, resolve=True)
    return build(ExperimentSettings, {str(key): value for key, value in dict(values).items()})  # type: ignore[arg-type]


def _terminate(_number: int, _frame: object) -> None:
    raise Terminated


def _report_stop(stop: KeyboardInterrupt) -> None:
    what = "terminated" if isinstance(stop, Terminated) else "interrupted"
    notes = "".join(f"; {note}" for note in getattr(stop, "__notes__", ()))
    sys.stderr.write(f"\n{what}{notes}; the same command continues from here\n")


def _refuse_unknown_overrides(config_name: str) -> None:
    """Name the nearest valid key where Hydra would only say that a key is not in the struct."""
    arguments = [arg for arg in sys.argv[1:] if not arg.startswith("-")]
    try:
        parsed = OverridesParser.create().parse_overrides(arguments)
        with hydra.initialize_config_dir(CONF, version_base="1.3"):
            # The first of several values stands for all: they are checked again, job by job.
            groups = [_first_value(override) for override in parsed if _is_group(override.key_or_group)]
            config = hydra.compose(config_name, overrides=groups, return_hydra_config=True)
    except HydraException:
        return  # Hydra says itself what is wrong with the command line
    valid = list(_keys(OmegaConf.to_container(config), ""))
    for override in parsed:
        key = override.key_or_group
        if not (_is_group(key) or override.is_add() or override.is_force_add() or key in valid):
            raise SettingsError(unknown_key(key, [name for name in valid if not name.startswith("hydra.")]))


def _first_value(override: Any) -> str:
    if not override.is_sweep_override():
        return str(override.input_line)
    return f"{override.key_or_group}={next(iter(override.sweep_string_iterator()))}"


def _is_group(key: str) -> bool:
    group = key.partition("@")[0]
    return group.startswith("hydra/") or (Path(CONF) / group).is_dir()


def _keys(values: Any, prefix: str) -> Iterator[str]:
    for key, value in values.items() if isinstance(values, Mapping) else ():
        yield f"{prefix}{key}"
        yield from _keys(value, f"{prefix}{key}.")
