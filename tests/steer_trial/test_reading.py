from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from easysteer_data.datamodule import ActivationDataModule
from easysteer_data.errors import RunError, SettingsError
from easysteer_data.probes import fit_linear_probe
from easysteer_data.steer_trial.reading import probe_reading, vector_reading
from easysteer_data.vectors import SteeringVector, VectorProvenance
from tests.runs import labelled_rows, write_run

STEPS = {2: torch.tensor([3.0, 4.0]), 5: torch.tensor([0.0, -2.0])}
VECTOR = SteeringVector.of_steps(STEPS, VectorProvenance())


def fitted_probe(folder: Path, n_classes: int = 2) -> Path:
    """A probe of layers 0 and 3, rows of width 12."""
    run = write_run(folder / "run", labelled_rows([1.0, 2.0], n_classes=n_classes))
    fit_linear_probe(ActivationDataModule(run), weights=folder / "probe.safetensors")
    return folder / "probe.safetensors"


def test_a_vector_reads_the_mean_length_along_its_direction_whatever_its_step() -> None:
    rows = torch.randn(7, 2, generator=torch.Generator().manual_seed(0))
    reading = vector_reading(VECTOR, 2)
    assert reading.score(rows) == pytest.approx((rows.double().numpy() @ [0.6, 0.8]).mean(), rel=1e-6)
    assert reading.layer == 2
    assert "layer 2" in reading.meaning


def test_a_layer_that_the_vector_lacks_is_refused() -> None:
    with pytest.raises(SettingsError, match="no layer 3, only 2, 5"):
        vector_reading(VECTOR, 3)


def test_a_probe_reads_the_mean_logit_of_its_file_s_weights(tmp_path: Path) -> None:
    path = fitted_probe(tmp_path)
    rows = np.random.default_rng(0).normal(size=(5, 12))
    file = load_file(path)
    logits = (rows - file["mean"][1]) / file["std"][1] @ file["weight"][1, 0] + file["bias"][1, 0]
    reading = probe_reading(path, 3)
    assert reading.score(torch.from_numpy(rows)) == pytest.approx(logits.mean())
    assert "'true'" in reading.title
    with pytest.raises(SettingsError, match=r"no layer 2, only 0, 3; set steer\.reading\.layer"):
        probe_reading(path, 2)


def test_a_probe_of_three_classes_gives_no_single_score(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"3 classes.*steer\.reading\.probe=vector"):
        probe_reading(fitted_probe(tmp_path, n_classes=3), 3)


def test_a_probe_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"none\.safetensors"):
        probe_reading(tmp_path / "none.safetensors", 3)
