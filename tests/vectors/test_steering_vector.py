from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from easysteer_data.errors import RunError, SettingsError
from easysteer_data.vectors import (
    SteeringVector,
    VectorProvenance,
    export_npy,
    load_vector,
    model_fingerprint,
    save_vector,
)

FINGERPRINT, OTHER = model_fingerprint({"a.safetensors": "00"}), model_fingerprint({"a.safetensors": "01"})


@pytest.fixture
def vector() -> SteeringVector:
    steps = torch.randn(3, 6, generator=torch.Generator().manual_seed(0))
    return SteeringVector.of_steps(
        dict(zip((12, 0, 5), steps, strict=True)),
        VectorProvenance(
            estimator="logistic",
            settings={"C": 0.5},
            model="tiny",
            model_fingerprint=FINGERPRINT,
            layer_convention="after the block",
            selection={"split": "train"},
            best_layer=5,
            sign="from 'no' to 'yes'",
        ),
    )


@pytest.fixture
def path(vector: SteeringVector, tmp_path: Path) -> Path:
    save_vector(vector, tmp_path / "new" / "vector.safetensors")
    return tmp_path / "new" / "vector.safetensors"


def rewrite(path: Path, metadata: dict[str, str] | None = None, **tensors: torch.Tensor) -> None:
    with safe_open(path, framework="pt") as file:
        found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        known = file.metadata()
    save_file(found | tensors, path, known | (metadata or {}))


def test_a_step_is_divided_into_a_unit_direction_and_its_length(vector: SteeringVector) -> None:
    steps = torch.randn(3, 6, generator=torch.Generator().manual_seed(0))
    assert vector.layer_ids == (0, 5, 12)
    assert vector.width == 6
    for layer_id, step in zip((12, 0, 5), steps, strict=True):
        assert vector.scales[layer_id] == pytest.approx(float(step.norm()))
        torch.testing.assert_close(vector.step(layer_id), step)
        assert float(vector.directions[layer_id].norm()) == pytest.approx(1)
    assert repr(vector) == "SteeringVector(3 layers 0 to 12 of width 6; logistic, tiny, best layer 5)"


def test_a_vector_does_not_change(vector: SteeringVector) -> None:
    with pytest.raises(FrozenInstanceError):
        vector.scales = {}  # type: ignore[misc]
    with pytest.raises(TypeError):
        vector.directions[0] = torch.zeros(6)  # type: ignore[index]
    given = torch.tensor([1.0, 0.0])
    made = SteeringVector({0: given}, {0: 1.0})
    given[0] = 7.0
    assert made.directions[0].tolist() == [1, 0]


def test_some_layers_of_a_vector_are_a_vector(vector: SteeringVector) -> None:
    part = vector.at([12, 5])
    assert part.layer_ids == (5, 12)
    assert torch.equal(part.step(12), vector.step(12))
    assert part.provenance == vector.provenance
    with pytest.raises(SettingsError, match="the steering vector has no layer 3, only 0, 5, 12"):
        vector.at([5, 3])


@pytest.mark.parametrize(
    ("directions", "scales", "message"),
    [
        ({}, {}, "needs a direction and a scale of the same layers"),
        ({1: [1.0]}, {2: 1.0}, r"found directions of \[1\] and scales of \[2\]"),
        ({-1: [1.0]}, {-1: 1.0}, "counted from 0, found -1"),
        ({1: [1.0], 2: [1.0, 0]}, {1: 1.0, 2: 1.0}, r"layer 2: a direction must be float32 \[1\]"),
        ({1: [2.0]}, {1: 1.0}, "layer 1: a direction must have length 1, found 2"),
        ({1: [float("nan")]}, {1: 1.0}, "layer 1: a direction must have length 1, found nan"),
        ({1: [1.0]}, {1: 0.0}, "layer 1: a scale must be a finite number above 0"),
        ({1: [1.0]}, {1: float("inf")}, "layer 1: a scale must be a finite number above 0"),
    ],
)
def test_what_is_no_steering_vector_is_refused(
    directions: dict[int, list[float]], scales: dict[int, float], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        SteeringVector({layer: torch.tensor(values) for layer, values in directions.items()}, scales)


def test_a_direction_of_another_dtype_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"must be float32 \[1\], found float64 \[1\]"):
        SteeringVector({0: torch.ones(1).double()}, {0: 1.0})


def test_a_vector_that_was_saved_and_loaded_is_the_same(vector: SteeringVector, path: Path) -> None:
    loaded = load_vector(path)
    assert loaded.provenance == vector.provenance
    assert loaded.scales == vector.scales
    for layer_id in vector.layer_ids:
        assert torch.equal(loaded.directions[layer_id], vector.directions[layer_id])


def test_the_file_can_be_used_without_this_package(vector: SteeringVector, path: Path) -> None:
    with safe_open(path, framework="np") as file:
        layer_id, direction, scale = (file.get_tensor(name) for name in ("layer_id", "direction", "scale"))
        provenance = json.loads(file.metadata()["provenance"])
    assert layer_id.tolist() == [0, 5, 12]
    np.testing.assert_allclose(direction[1] * scale[1], vector.step(5).numpy(), rtol=1e-6)
    assert provenance["sign"] == "from 'no' to 'yes'"


def test_loading_for_the_model_it_was_made_for_is_fine(path: Path) -> None:
    assert load_vector(path, model_fingerprint=FINGERPRINT, width=6).width == 6


def test_loading_for_another_model_is_refused_with_both_unless_forced(path: Path) -> None:
    with pytest.raises(
        SettingsError, match=f"tiny of fingerprint {FINGERPRINT}, but this model's is {OTHER}"
    ):
        load_vector(path, model_fingerprint=OTHER, width=6)
    with pytest.raises(SettingsError, match=r"vector\.safetensors: .*have width 6, the model's rows 8"):
        load_vector(path, model_fingerprint=FINGERPRINT, width=8)
    assert load_vector(path, model_fingerprint=OTHER, width=8, force=True).width == 6


def test_a_vector_of_an_unknown_model_is_checked_by_its_width_alone(vector: SteeringVector) -> None:
    unknown = replace(vector, provenance=replace(vector.provenance, model_fingerprint=None))
    unknown.check_fits(OTHER, 6)
    with pytest.raises(SettingsError, match="width 6, the model's rows 7"):
        unknown.check_fits(OTHER, 7)


def test_equal_files_give_equal_fingerprints_in_any_order() -> None:
    assert model_fingerprint({"a": "1", "b": "2"}) == model_fingerprint({"b": "2", "a": "1"}) != FINGERPRINT


def test_files_that_are_no_vector_are_refused_by_name(path: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"nowhere\.safetensors: can't be read as a steering vector"):
        load_vector(tmp_path / "nowhere.safetensors")
    (tmp_path / "text").write_text("no tensors here")
    with pytest.raises(RunError, match="text: can't be read as a steering vector"):
        load_vector(tmp_path / "text")
    rewrite(path, {"format": "something else"})
    with pytest.raises(RunError, match="is no steering vector, its format is 'something else'"):
        load_vector(path)


@pytest.mark.parametrize(
    "change",
    [
        {"metadata": {"provenance": "{"}},
        {"metadata": {"provenance": "[]"}},
        {"layer_id": torch.tensor([0, 5, 5])},
        {"layer_id": torch.tensor([0, 5, -12])},
        {"layer_id": torch.tensor([0.0, 5.0, 12.0])},
        {"scale": torch.ones(2)},
        {"scale": torch.zeros(3)},
        {"direction": torch.ones(3, 6)},
        {"direction": torch.ones(3)},
        {"direction": torch.full((3, 6), torch.nan)},
    ],
)
def test_a_file_that_contradicts_itself_is_refused(path: Path, change: dict[str, Any]) -> None:
    rewrite(path, **change)
    with pytest.raises(RunError, match=r"vector\.safetensors: can't be read as a steering vector"):
        load_vector(path)


def test_plain_arrays_hold_direction_times_scale(vector: SteeringVector, tmp_path: Path) -> None:
    written = export_npy(vector, tmp_path / "arrays")
    assert [file.name for file in written] == ["layer-000.npy", "layer-005.npy", "layer-012.npy"]
    for layer_id, file in zip(vector.layer_ids, written, strict=True):
        array = np.load(file, allow_pickle=False)
        assert array.dtype == np.float32
        np.testing.assert_array_equal(array, vector.step(layer_id).numpy())
