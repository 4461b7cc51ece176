from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from easysteer_data.errors import RunError
from easysteer_data.probes import PROBE_KINDS, LinearProbe, load_probe, save_probe
from easysteer_data.probes.kinds import probe_class
from easysteer_data.probes.standardise import Moments
from easysteer_data.settings import ProbeSettings


@pytest.fixture(params=["lbfgs", "adam"])
def probe(request: Any) -> LinearProbe:
    torch.manual_seed(0)
    made = LinearProbe((2, 5), 4, ("a", "b", "c"), C=0.5, solver=request.param)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter)
    made.readout.standardise(Moments.of_rows(3 + 2 * torch.randn(50, 2, 4)))
    return made


def test_a_probe_that_was_saved_and_loaded_gives_the_same_logits(probe: LinearProbe, tmp_path: Path) -> None:
    save_probe(probe, tmp_path / "probe.safetensors")
    loaded = load_probe(tmp_path / "probe.safetensors")

    x = torch.randn(10, 2, 4)
    assert isinstance(loaded, LinearProbe)
    assert torch.equal(loaded(x), probe(x))
    assert torch.equal(loaded.score(x), probe.score(x))
    assert loaded.hparams == probe.hparams
    assert loaded.readout.n_train == 50


def test_the_file_can_be_used_without_this_package(probe: LinearProbe, tmp_path: Path) -> None:
    save_probe(probe, tmp_path / "probe.safetensors", {"run": "abc"})
    with safe_open(tmp_path / "probe.safetensors", framework="np") as file:
        weight, bias, mean, std = (file.get_tensor(name) for name in ("weight", "bias", "mean", "std"))
        metadata = file.metadata()

    x = torch.randn(2, 4)
    by_hand = np.einsum("lcw,lw->lc", weight, (x.numpy() - mean) / std) + bias
    np.testing.assert_allclose(by_hand, probe(x[None])[0].detach(), rtol=1e-5)
    assert metadata["run"] == "abc"
    assert json.loads(metadata["probe"])["layer_ids"] == [2, 5]
    assert json.loads(metadata["probe"])["label_names"] == ["a", "b", "c"]


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"nowhere\.safetensors: can't be read as a probe"):
        load_probe(tmp_path / "nowhere.safetensors")


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no tensors here")
    with pytest.raises(RunError, match="text: can't be read as a probe"):
        load_probe(tmp_path / "text")
    save_file({"weight": torch.zeros(1)}, tmp_path / "other")
    with pytest.raises(RunError, match="other: is no probe, its format is None"):
        load_probe(tmp_path / "other")


@pytest.mark.parametrize(
    "change",
    [
        {"layer_ids": [2, 5, 6]},
        {"width": 10**12},
        {"label_names": ["a", "b"]},
        {"solver": "sgd"},
        {"unknown": 1},
        {"layer_ids": None},
        {"kind": "oracle"},
    ],
)
def test_a_probe_file_that_contradicts_itself_is_refused(
    probe: LinearProbe, tmp_path: Path, change: dict[str, Any]
) -> None:
    path = tmp_path / "probe.safetensors"
    save_probe(probe, path)
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    metadata["probe"] = json.dumps(json.loads(metadata["probe"]) | change)
    save_file(tensors, path, metadata)
    with pytest.raises(RunError, match="can't be read as a probe"):
        load_probe(path)


@pytest.mark.parametrize("kind", PROBE_KINDS)
def test_every_kind_is_read_back_as_it_was(kind: str, tmp_path: Path) -> None:
    shape = {"layer_ids": [2, 5], "width": 4, "label_names": ["a", "b", "c"]}
    made = probe_class(kind).of_settings(shape, ProbeSettings(kind=kind, hidden=3, shrinkage=0.2))  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(0)
    made.load_tensors(
        {
            name: torch.rand(tensor.shape, generator=generator).to(tensor.dtype)
            for name, tensor in made.tensors().items()
        }
    )
    save_probe(made, tmp_path / "probe.safetensors")
    loaded = load_probe(tmp_path / "probe.safetensors")
    assert (loaded.kind, loaded.settings) == (kind, made.settings)
    x = torch.randn(6, 2, 4, generator=generator)
    assert torch.equal(loaded.score(x), made.score(x))
    assert loaded.score(x).shape == (1 if made.pools_prompts else 6, 2, 3)
