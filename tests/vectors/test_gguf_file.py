from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from easysteer_data.errors import RunError, SettingsError
from easysteer_data.vectors import SteeringVector, VectorProvenance, export_gguf, import_gguf
from tests.vectors.made import Floats

HAPPY = "easysteer/happy_diffmean.gguf"
ORIGIN = VectorProvenance(estimator="diff_means", model="tiny", model_fingerprint="f0", best_layer=3)


@pytest.fixture
def vector() -> SteeringVector:
    steps = 3 * torch.randn(2, 8, generator=torch.Generator().manual_seed(0))
    return SteeringVector.of_steps({3: steps[0], 1: steps[1]}, ORIGIN)


def write(
    path: Path, tensors: dict[str, Any], architecture: str = "controlvector", **values: float | str
) -> Path:
    """A control vector as other tools write it, with the package itself."""
    writer = gguf.GGUFWriter(path, architecture)
    for name, value in values.items():
        key = f"controlvector.{name}"
        writer.add_string(key, value) if isinstance(value, str) else writer.add_float32(key, value)
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def easysteers(made: Path) -> Path:
    """The file that EasySteer wrote, where there are the shared data sets, and else one of the same keys."""
    beside = Path(__file__).parents[3] / "shared" / "data"
    found = Path(os.environ.get("EASYSTEER_SHARED_DATA", beside)) / HAPPY
    if found.is_file():
        return found
    rows = np.random.default_rng(0).normal(size=(28, 1536)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return write(
        made / "happy.gguf",
        {f"direction.{layer_id}": row for layer_id, row in enumerate(rows)},
        model_hint="qwen2.5",
        method="diffmean",
        normalize=1.0,
        token_pos=-1.0,
        n_positive=4.0,
        n_negative=4.0,
    )


def read(path: Path) -> tuple[dict[str, Any], dict[str, Floats]]:
    """Keys and tensors of a file, by the package itself."""
    reader = gguf.GGUFReader(path)
    values = {name: entry.contents() for name, entry in reader.fields.items()}
    return values, {tensor.name: np.array(tensor.data) for tensor in reader.tensors}


def test_an_export_is_what_llama_cpp_and_repeng_read(vector: SteeringVector, tmp_path: Path) -> None:
    export_gguf(vector, tmp_path / "new" / "vector.gguf", model_hint="llama")
    values, tensors = read(tmp_path / "new" / "vector.gguf")
    assert values["general.architecture"] == "controlvector"
    assert values["controlvector.model_hint"] == "llama"
    assert values["controlvector.layer_count"] == 2
    # Named by the 0-based block whose output they are added to, as both tools count.
    assert sorted(tensors) == ["direction.1", "direction.3"]
    for layer_id in (1, 3):
        assert tensors[f"direction.{layer_id}"].dtype == np.float32
        np.testing.assert_array_equal(tensors[f"direction.{layer_id}"], vector.step(layer_id).numpy())


def test_what_was_exported_imports_as_the_same_vector(vector: SteeringVector, tmp_path: Path) -> None:
    export_gguf(vector, tmp_path / "vector.gguf")
    found = import_gguf(tmp_path / "vector.gguf")
    assert found.layer_ids == vector.layer_ids
    assert found.provenance == vector.provenance
    for layer_id in vector.layer_ids:
        torch.testing.assert_close(found.step(layer_id), vector.step(layer_id), rtol=1e-6, atol=1e-7)
        assert found.scales[layer_id] == pytest.approx(vector.scales[layer_id], rel=1e-6)


def test_easysteers_vector_imports_with_its_own_layers(tmp_path: Path) -> None:
    path = easysteers(tmp_path)
    vector, (_, tensors) = import_gguf(path), read(path)
    assert vector.layer_ids == tuple(range(28))
    assert vector.width == 1536
    for layer_id in vector.layer_ids:
        assert vector.scales[layer_id] == pytest.approx(1, abs=1e-5)
        np.testing.assert_allclose(
            vector.directions[layer_id].numpy(), tensors[f"direction.{layer_id}"], atol=1e-6
        )
    origin = vector.provenance
    assert (origin.model, origin.estimator, origin.model_fingerprint) == ("qwen2.5", "diffmean", None)
    assert origin.settings["n_positive"] == 4


def test_block_0_imports_but_is_not_exported_silently(tmp_path: Path) -> None:
    vector = import_gguf(easysteers(tmp_path))
    with pytest.raises(SettingsError, match=r"llama\.cpp refuses a control vector that has block 0"):
        export_gguf(vector, tmp_path / "again.gguf")
    assert not (tmp_path / "again.gguf").exists()
    export_gguf(vector.at(vector.layer_ids[1:]), tmp_path / "again.gguf")
    assert import_gguf(tmp_path / "again.gguf").layer_ids == vector.layer_ids[1:]


def test_only_hidden_states_are_exported(vector: SteeringVector, tmp_path: Path) -> None:
    heads = replace(vector, provenance=replace(ORIGIN, stream="attention_heads"))
    with pytest.raises(SettingsError, match="added to hidden states, this one is of attention_heads"):
        export_gguf(heads, tmp_path / "vector.gguf")


def test_half_precision_is_read_and_directions_of_zeros_are_left_out(tmp_path: Path) -> None:
    row = np.array([3, 0, 4], dtype=np.float16)
    vector = import_gguf(
        write(tmp_path / "v.gguf", {"direction.2": row, "direction.4": np.zeros(3, np.float32)})
    )
    assert vector.layer_ids == (2,)
    assert vector.scales[2] == 5
    assert vector.directions[2].tolist() == pytest.approx([0.6, 0, 0.8])


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({}, "found directions of"),
        ({"direction.x": np.ones(3, np.float32)}, "tensor 'direction.x' is no direction.N"),
        ({"direction.01": np.ones(3, np.float32)}, "tensor 'direction.01' is no direction.N"),
        ({"direction.1": np.ones((3, 2), np.float32)}, "direction.1 must be a vector"),
        ({"direction.1": np.ones(3, np.int8)}, "direction.1 must be a vector of F32, F16, F64, found I8"),
        ({"direction.1": np.full(3, np.nan, np.float32)}, "direction.1 is not finite"),
        ({"direction.1": np.ones(3, np.float32), "direction.2": np.ones(4, np.float32)}, "layer 2"),
    ],
)
def test_a_file_without_usable_directions_is_refused(
    tensors: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "v.gguf", tensors)
    with pytest.raises(RunError, match=f"can't be read as a GGUF control vector .*{message}"):
        import_gguf(path)


def test_a_file_of_another_kind_is_refused(vector: SteeringVector, tmp_path: Path) -> None:
    model = write(tmp_path / "model.gguf", {"direction.1": np.ones(3, np.float32)}, architecture="llama")
    with pytest.raises(RunError, match="is no control vector, its architecture is 'llama'"):
        import_gguf(model)
    with pytest.raises(RunError, match=r"nowhere\.gguf: can't be read"):
        import_gguf(tmp_path / "nowhere.gguf")
    export_gguf(vector, tmp_path / "whole.gguf")
    whole = (tmp_path / "whole.gguf").read_bytes()
    for size in (0, 3, 20, 100, len(whole) - 60):
        (tmp_path / "cut.gguf").write_bytes(whole[:size])
        with pytest.raises(RunError, match=r"cut\.gguf: can't be read"):
            import_gguf(tmp_path / "cut.gguf")


def test_without_the_package_the_error_says_what_to_install(
    vector: SteeringVector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(SettingsError, match=r"pip install 'easysteer-data\[gguf\]'"):
        export_gguf(vector, tmp_path / "vector.gguf")
    with pytest.raises(SettingsError, match=r"pip install 'easysteer-data\[gguf\]'"):
        import_gguf(tmp_path / "vector.gguf")
