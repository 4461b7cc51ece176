"""Every config composes into typed settings, and a wrong key is refused with the nearest right one."""

from __future__ import annotations

from pathlib import Path

import hydra
import pytest
from omegaconf import OmegaConf

from easysteer_data.errors import SettingsError
from easysteer_data.row_selection import RowSelection
from easysteer_data.settings import ExperimentSettings, VerifySettings, build
from pipelines.stage import CONF, settings_of

ROOTS = ("capture", "fit_vector", "inspect", "merge", "steer", "train_probe", "verify")
GROUPS = sorted(p.name for p in Path(CONF).iterdir() if p.is_dir() and p.name != "experiment")
OPTIONS = [(p.parent.name, p.stem) for p in sorted(Path(CONF).glob("*/*.yaml")) if p.parent.name in GROUPS]
EXPERIMENTS = sorted(p.stem for p in Path(CONF).glob("experiment/*.yaml"))
# Values that only the user can give.
GIVEN = {
    "corpus": ["corpus.path=some.jsonl"],
    "model": ["model.path=some/model"],
    "caa_corrigible": ["corpus.path=corrigible.json"],
    "happiness": ["corpus.path=feelings"],
}


def settings(root: str, *overrides: str) -> ExperimentSettings:
    with hydra.initialize_config_dir(CONF, version_base="1.3"):
        return settings_of(hydra.compose(root, overrides=list(overrides)))


@pytest.mark.parametrize("root", ROOTS)
def test_roots_compose_with_their_defaults(root: str) -> None:
    assert settings(root).name == "run"


@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_every_option_of_every_group_composes(group: str, option: str) -> None:
    composed = settings("capture", f"{group}={option}", *GIVEN.get(group, []))
    RowSelection.from_settings(composed.select)


@pytest.mark.parametrize("root", ROOTS)
@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_experiment_composes_for_every_stage(root: str, experiment: str) -> None:
    composed = settings(root, f"experiment={experiment}", *GIVEN.get(experiment, []))
    assert composed.name == experiment
    assert composed.out == f"outputs/{experiment}"


@pytest.mark.parametrize(
    "path", sorted(Path(CONF).rglob("*.yaml")), ids=lambda p: p.relative_to(CONF).as_posix()
)
def test_config_files_are_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 40


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("+corpus.text_colum=x", r"'corpus\.text_colum'; did you mean 'corpus\.text_column'"),
        ("+modle.path=x", r"'modle'; did you mean 'model'"),
        ("+capture.layer=[1]", r"'capture\.layer'; did you mean 'capture\.layers'"),
        ("capture.storage=float8", r"capture\.storage: .*float16"),
        ("capture.max_tokens=many", r"capture\.max_tokens: .*integer"),
        ("capture.layers=[a]", r"capture\.layers.*integer"),
        ("corpus.splits.train=0.9", "splits"),
        ("verify.n=some", r"verify\.n: .*integer"),
        ("+verify.m=3", r"'verify\.m'; did you mean 'verify\.n'"),
        ("model=folder", r"model\.path: must be given"),
    ],
)
def test_unusable_values_are_refused_by_key(override: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        settings("capture", override)


def test_verify_reads_the_experiments_own_run_unless_one_is_named() -> None:
    assert settings("verify", "experiment=demo").verify == VerifySettings(n=32, seed=0)
    named = settings("verify", "run=some/run", "verify.n=8", "verify.seed=1")
    assert (named.run, named.verify) == ("some/run", VerifySettings(n=8, seed=1))


def test_a_missing_key_is_named() -> None:
    with pytest.raises(SettingsError, match="out: must be given"):
        build(ExperimentSettings, {"name": "x", "model": {"path": "m"}, "corpus": {"path": "c"}})


def test_hydra_stays_in_the_folder_it_was_started_from() -> None:
    with hydra.initialize_config_dir(CONF, version_base="1.3"):
        composed = hydra.compose("capture", return_hydra_config=True)
    assert composed.hydra.job.chdir is False
    assert OmegaConf.select(composed, "hydra.job.name") == "capture"
