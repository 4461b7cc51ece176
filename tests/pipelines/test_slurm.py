"""The launcher config for Slurm composes with Hydra's own plugin; nothing is submitted."""

from __future__ import annotations

import hydra
import pytest

from pipelines.stage import CONF


@pytest.mark.parametrize("launcher", ["slurm", "submitit_slurm"])
def test_a_multirun_can_be_given_to_slurm(launcher: str) -> None:
    overrides = [f"hydra/launcher={launcher}", "hydra.launcher.partition=gpu", "out=runs/a"]
    with hydra.initialize_config_dir(CONF, version_base="1.3"):
        composed = hydra.compose("capture", overrides=overrides, return_hydra_config=True)
    chosen = composed.hydra.launcher
    assert chosen._target_ == "hydra_plugins.hydra_submitit_launcher.submitit_launcher.SlurmLauncher"
    assert chosen.partition == "gpu"
    assert chosen.submitit_folder.startswith("runs/a/hydra/capture/")
    if launcher == "slurm":
        assert (chosen.gpus_per_node, chosen.cpus_per_task, chosen.timeout_min) == (1, 16, 720)
