"""Runs a stage under Hydra: composes its config, checks every key, builds settings, reports errors."""

from __future__ import annotations

import os
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
from easysteer_data.settings import ExperimentSettings, build, unknown_key

# An absolute folder works in the repo and in an installed wheel alike.
CONF = str(Path(__file__).resolve().parents[1] / "conf")
_QUIET = {"VLLM_LOGGING_LEVEL": "WARNING", "TORCH_CPP_LOG_LEVEL": "ERROR", "TOKENIZERS_PARALLELISM": "false"}


def run_stage(config_name: str, stage: Callable[[ExperimentSettings], None]) -> None:
    """Run `stage` with the settings that the command line describes; the whole body of a pipeline's main.

    An error that this package raised ends the process with its message and exit code 1, without a traceback.
    """
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    warnings.filterwarnings("ignore", category=FutureWarning)
    try:
        _refuse_unknown_overrides(config_name)
    except SettingsError as error:
        _fail(error)

    @hydra.main(version_base="1.3", config_path=CONF, config_name=config_name)
    def main(config: DictConfig) -> None:
        try:
            stage(settings_of(config))
        except (EasySteerDataError, NotImplementedError) as error:
            _fail(error)

    main()


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


def _fail(error: Exception) -> None:
    sys.stderr.write(f"{type(error).__name__}: {error}\n")
    raise SystemExit(1)


def _refuse_unknown_overrides(config_name: str) -> None:
    """Name the nearest valid key where Hydra would only say that a key is not in the struct."""
    arguments = [arg for arg in sys.argv[1:] if not arg.startswith("-")]
    try:
        parsed = OverridesParser.create().parse_overrides(arguments)
        with hydra.initialize_config_dir(CONF, version_base="1.3"):
            groups = [override.input_line or "" for override in parsed if _is_group(override.key_or_group)]
            config = hydra.compose(config_name, overrides=groups, return_hydra_config=True)
    except HydraException:
        return  # Hydra says itself what is wrong with the command line
    valid = list(_keys(OmegaConf.to_container(config), ""))
    for override in parsed:
        key = override.key_or_group
        if not (_is_group(key) or override.is_add() or override.is_force_add() or key in valid):
            raise SettingsError(unknown_key(key, [name for name in valid if not name.startswith("hydra.")]))


def _is_group(key: str) -> bool:
    group = key.partition("@")[0]
    return group.startswith("hydra/") or (Path(CONF) / group).is_dir()


def _keys(values: Any, prefix: str) -> Iterator[str]:
    for key, value in values.items() if isinstance(values, Mapping) else ():
        yield f"{prefix}{key}"
        yield from _keys(value, f"{prefix}{key}.")
