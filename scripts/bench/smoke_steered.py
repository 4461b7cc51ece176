"""The steered engines of `gpu_smoke.py`: unsteered prompts keep their bits, steered ones the closed form."""

from __future__ import annotations

from typing import Any

import torch
from agreement import compare
from smoke_engines import LAYERS, prompts

STEP_LENGTH = 8.0


def directions() -> dict[int, torch.Tensor]:
    """A random unit vector for each layer."""
    generator = torch.Generator().manual_seed(2)
    drawn = {layer_id: torch.randn(1024, generator=generator) for layer_id in LAYERS}
    return {layer_id: vector / vector.norm() for layer_id, vector in drawn.items()}


def run_steered(
    llm_options: dict[str, Any], sampling: dict[str, Any]
) -> tuple[Any, list[Any], dict[str, torch.Tensor], dict[str, Any]]:
    """Steer three of each five prompts: added, erased, added to what is generated; two stay as they are."""
    from easysteer_data import SteeringSpec, VectorSpec, capture, generate, open_llm
    from easysteer_data.engine.tapped import TappedEngine

    llm = open_llm(**llm_options, steering=True)
    how: list[dict[str, Any] | None] = [
        None,
        {"scale": STEP_LENGTH},
        {"algorithm": "erase"},
        None,
        {"scale": STEP_LENGTH, "apply": {"generation": "all"}},
    ]
    specs = [
        None if options is None else SteeringSpec(vectors=[VectorSpec(data=directions(), **options)])
        for options in how
    ]
    steering = [specs[i % 5] for i in range(len(prompts()))]
    plain = capture(llm, prompts(), layers=LAYERS, **sampling)
    steered = capture(llm, prompts(), layers=LAYERS, steering=steering, **sampling)
    again = generate(llm, prompts(), steering=steering, **sampling)
    after = capture(llm, prompts(), layers=LAYERS, **sampling)
    tokens = [[list(o.outputs[0].token_ids) for o in r] for r in (plain.outputs, steered.outputs, again)]
    of_kind = {k: range(k, len(steering), 5) for k in range(5)}
    untouched = [*of_kind[0], *of_kind[3]]
    facts: dict[str, Any] = {
        "runner": TappedEngine(llm).facts[0].runner,
        "n_unsteered": len(untouched),
        "unsteered prompts with the bits of a batch without steering": sum(
            all(torch.equal(steered.sample(i)[layer_id], plain.sample(i)[layer_id]) for layer_id in LAYERS)
            for i in untouched
        ),
        "unsteered prompts with equal tokens": sum(tokens[0][i] == tokens[1][i] for i in untouched),
        "steered prompts with equal tokens": sum(
            tokens[0][i] == tokens[1][i] for k in (1, 2, 4) for i in of_kind[k]
        ),
        "prompts with equal tokens in capture and generate": sum(
            a == b for a, b in zip(tokens[1], tokens[2], strict=True)
        ),
        "rows after steering have the bits of before": all(
            torch.equal(after.rows(layer_id), plain.rows(layer_id)) for layer_id in LAYERS
        ),
    }
    first, u = LAYERS[0], directions()[LAYERS[0]]

    def prefill(result: Any, i: int, layer_id: int = first) -> torch.Tensor:
        rows: torch.Tensor = result.sample(i)[layer_id][: len(prompts()[i]["prompt_token_ids"])]
        return rows.float()

    # At the first steered layer the closed form is known from the unsteered rows.
    facts["added against closed form"] = compare(
        torch.cat([prefill(steered, i) for i in of_kind[1]]),
        torch.cat([prefill(plain, i) + STEP_LENGTH * u for i in of_kind[1]]),
    )
    before = torch.cat([prefill(plain, i) for i in of_kind[2]])
    facts["erased against closed form"] = compare(
        torch.cat([prefill(steered, i) for i in of_kind[2]]), before - (before @ u)[:, None] * u
    )
    facts["largest projection left, of the row's length"] = {
        str(layer_id): max(
            float(
                (prefill(steered, i, layer_id) @ v / prefill(steered, i, layer_id).norm(dim=-1)).abs().max()
            )
            for i in of_kind[2]
        )
        for layer_id, v in directions().items()
    }
    facts["prompt rows that generation steering left as they were"] = sum(
        torch.equal(prefill(steered, i), prefill(plain, i)) for i in of_kind[4]
    )
    rows = {
        f"hidden.{layer_id}": torch.cat([prefill(steered, i, layer_id) for i in range(len(steering))])
        for layer_id in LAYERS
    }
    return llm, steered.outputs, rows, facts
