"""`generate`: prompts through an engine, steered or not, completions out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from easysteer_data.bos import BosPolicy
from easysteer_data.engine.feed import Feed, Request, Sampling
from easysteer_data.engine.steer_session import SteerSession
from easysteer_data.engine.tapped import TappedEngine
from easysteer_data.hidden_states.prompts import prepare_prompts
from easysteer_data.hidden_states.steered import Steering, plan_steering, warn_of_short_prompts

# Engine steps after which a failure in a worker ends the run.
_STEPS_PER_CHECK = 64


def generate(
    llm: Any,
    prompts: Sequence[Any],
    steering: Steering | None = None,
    max_tokens: int = 16,
    *,
    bos: BosPolicy = "refuse",
    **sampling_kwargs: Any,
) -> list[Any]:
    """Run prompts, each steered by its spec, and leave the engine unsteered.

    Args:
        llm: a vLLM `LLM` opened by `easysteer_data.open_llm(..., steering=True)`, or any whose engine is in
            this process and replays no CUDA graphs: such a one is made ready at its first use.
        prompts: texts, message lists of a chat, or whatever else `LLM.generate` takes.
        steering: one spec for all prompts, or a list with one per prompt, None entries unsteered; None steers
            nothing.
        max_tokens: most tokens to generate.
        bos: what to do with a text that begins with BOS, to which the tokenizer would add another: "refuse",
            "repair" or "keep".
        **sampling_kwargs: passed to SamplingParams; temperature is 0.0 unless given.

    Returns:
        vLLM's RequestOutput of each prompt, in order.

    Raises:
        ValueError: another number of specs than prompts; a vector that does not fit the model.
        UnsupportedEngineError: the engine can't be steered; shows what to open it with.
        EngineError: steering failed in a worker.
    """
    prompts = prepare_prompts(llm, prompts, bos)
    sampling = Sampling(max_tokens, sampling_kwargs, recompute=False)
    engine = TappedEngine(llm)
    plan = plan_steering(engine, steering, len(prompts))
    steered = SteerSession(engine, plan.recipes)
    requests = [
        Request(i, steered.keep_apart(prompt, recipe), None, recipe)
        for i, (prompt, recipe) in enumerate(zip(prompts, plan.of_prompt, strict=True))
    ]
    finished: dict[int, Any] = {}
    with steered:
        for step, outputs in enumerate(Feed(llm, sampling).run(requests), start=1):
            finished.update(outputs)
            if step % _STEPS_PER_CHECK == 0:
                steered.check()
    ordered = [finished[i] for i in range(len(prompts))]
    warn_of_short_prompts(plan, ordered)
    return ordered
