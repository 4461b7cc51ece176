"""Specs refuse what can't be meant, by name; ApplySpec is SelectSpec under its own name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from easysteer_data import ApplySpec, SelectSpec, SteeringSpec, VectorSpec
from easysteer_data.errors import SettingsError

V = {0: torch.ones(4)}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "either source, a vector's file, or data"),
        ({"data": V, "source": "v.gguf"}, "either source"),
        ({"data": [1, 2]}, "data is a SteeringVector or layer id -> Tensor, not list"),
        ({"data": {}}, "holds no layer"),
        ({"data": V, "algorithm": "rotate"}, "'rotate'; choose direct or erase"),
        ({"data": V, "scale": float("nan")}, "scale is nan"),
        ({"data": V, "scale": float("inf")}, "scale is inf"),
        ({"data": V, "scale": "big"}, "scale is 'big'"),
        ({"data": V, "layers": []}, r"layers=\[\] steers nothing"),
        ({"data": V, "apply": {"prompts": "all"}}, "ApplySpec: unknown selection field 'prompts'.*'prompt"),
        ({"data": V, "apply": {"generation_window": [3, 3]}}, "ApplySpec: generation_window=.* is empty"),
        ({"data": V, "apply": "all"}, "ApplySpec: a selection is"),
    ],
)
def test_a_vector_spec_that_can_not_be_meant_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        VectorSpec(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"vectors": []}, r"vectors=\[\] steers nothing"),
        ({"vectors": VectorSpec(data=V)}, "vectors is a list of VectorSpec"),
        ({"vectors": [V]}, "vectors is a list of VectorSpec"),
        ({"vectors": [VectorSpec(data=V)], "conflict": "last"}, "'last'; choose sum or error"),
    ],
)
def test_a_steering_spec_that_can_not_be_meant_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        SteeringSpec(**arguments)


def test_an_apply_spec_has_the_rules_and_the_wire_form_of_a_select_spec() -> None:
    fields: dict[str, Any] = {"prompt_window": [-3, None], "exclude_prompt_positions": [-2]}
    apply, select = ApplySpec(**fields), SelectSpec(**fields)
    assert apply.to_wire() == select.to_wire()
    assert ApplySpec.from_wire(select.to_wire()) == apply != select
    assert repr(apply).startswith("ApplySpec(")
    ids = np.arange(9)
    assert (
        apply.mask(7, 0, ids).tolist() == select.mask(7, 0, ids).tolist() == [p in (4, 6) for p in range(9)]
    )
    with pytest.raises(SettingsError, match=r"^ApplySpec: the selection has no include"):
        ApplySpec()
    for given in (apply, select, fields):
        assert VectorSpec(data=V, apply=given).apply == apply
