"""`capture`: prompts through an engine, chosen rows out, labelled and proven."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from easysteer_data.bos import BosPolicy
from easysteer_data.engine.feed import Feed, Request, Sampling
from easysteer_data.engine.proof import FinishedPrompt, ProvenRows, Recorded, Rules, prove
from easysteer_data.engine.session import CaptureSession
from easysteer_data.engine.steer_session import SteerSession
from easysteer_data.engine.tapped import TappedEngine
from easysteer_data.engine.wire import StreamShape
from easysteer_data.errors import EngineError, SettingsError
from easysteer_data.hidden_states.prompts import prepare_prompts
from easysteer_data.hidden_states.result import CaptureResult, RowLabels
from easysteer_data.hidden_states.steered import Steering, plan_steering, warn_of_short_prompts
from easysteer_data.select import SelectSpec, coerce_select, warn_clamped
from easysteer_data.types import Gates, Reduce, Stream

Select = SelectSpec | Mapping[str, Any]


def capture(
    llm: Any,
    prompts: Sequence[Any],
    max_tokens: int = 1,
    layers: Sequence[int] | None = None,
    dtype: str | torch.dtype | None = None,
    select: Select | None = None,
    per_prompt_selects: Sequence[Select | None] | None = None,
    stream: Stream = "hidden_states",
    steering: Steering | None = None,
    *,
    reduce: Reduce | None = None,
    budget_rows: int | None = None,
    gates: Gates = "raise",
    bos: BosPolicy = "refuse",
    **generate_kwargs: Any,
) -> CaptureResult:
    """Run prompts and return the rows of one stream.

    Args:
        llm: a vLLM `LLM` opened by `easysteer_data.open_llm`, or a plain one whose engine is in this process.
        prompts: texts, message lists of a chat, or whatever else `LLM.generate` takes.
        max_tokens: tokens to generate; 1 = the prompt's forward pass only.
        layers: true layer ids, None = all that are hooked.
        dtype: storage dtype of the rows ("float32", "bfloat16", "float16"), None = the model's,
            and float32 for router logits.
        select: which rows, for all prompts; None = all.
        per_prompt_selects: one per prompt; overrides `select` for that prompt, None entries keep it.
        stream: "hidden_states", "router_logits" or "attention_heads".
        steering: one SteeringSpec for all prompts, or a list with one per prompt, None entries unsteered;
            rows are those of the steered residual stream. Needs an engine opened with `steering=True`, or one
            in this process without CUDA graphs.
        reduce: "last" or "mean" of each prompt's selected rows, taken on the engine over the whole prompt and
            completion; None = all rows. Not together with per_prompt_selects.
        budget_rows: rows of a layer that the engine may record; one more is an error, none is dropped. Where
            a generated token is not known in time, more rows are recorded than the result has.
        gates: "raise" stops at a row that is all zeros, not finite or too large for the dtype; "count" counts
            such rows in the result's `gates`.
        bos: what to do with a text that begins with BOS, to which the tokenizer would add another: "refuse",
            "repair" or "keep".
        **generate_kwargs: passed to SamplingParams; temperature is 0.0 unless given.

    Returns:
        The rows, checked one by one against the requests' own tokens and positions.

    Raises:
        ValueError: another number of `per_prompt_selects` or steering specs than prompts; a layer or stream
            that is not hooked; a steering vector that does not fit the model.
        RuntimeError: layers are spread over several workers; `budget_rows` is used up.
        ProofError: a row is missing, doubled, mislabelled, all zeros or not finite.
    """
    if reduce is not None and per_prompt_selects is not None:
        raise SettingsError("reduce can't be combined with per_prompt_selects")
    prompts = prepare_prompts(llm, prompts, bos)
    selects = _selects_of(len(prompts), select, per_prompt_selects)
    sampling = Sampling(max_tokens, generate_kwargs)
    engine = TappedEngine(llm, stream)
    shapes: dict[Stream, StreamShape] = {stream: engine.shape(stream, layers, dtype)}
    plan = plan_steering(engine, steering, len(prompts))
    steered = SteerSession(engine, plan.recipes)
    requests = [
        Request(i, steered.keep_apart(prompt, recipe), selects[i], recipe)
        for i, (prompt, recipe) in enumerate(zip(prompts, plan.of_prompt, strict=True))
    ]
    with steered, CaptureSession(engine, shapes, reduce, budget_rows) as session:
        rules = Rules(shapes, reduce, gates)
        finished, recorded = _run(Feed(llm, sampling), requests, session)
    outputs = [finished[i] for i in range(len(prompts))]
    records = [finished_prompt(i, output, selects[i]) for i, output in enumerate(outputs)]
    warn_clamped(selects, [len(record.prompt_token_ids) for record in records])
    warn_of_short_prompts(plan, outputs)
    rows = prove(recorded, records, rules)
    return capture_result(rows, stream, shapes[stream], outputs, engine)


def _run(feed: Feed, requests: Sequence[Request], session: CaptureSession) -> tuple[dict[int, Any], Recorded]:
    finished: dict[int, Any] = {}
    parts: list[Recorded] = []
    for outputs in feed.run(requests):
        finished.update(outputs)
        parts.append(session.look())
    parts.append(session.fetch())
    chunks = [chunk for part in parts for chunk in part.chunks]
    return finished, Recorded(chunks, [sums for part in parts for sums in part.sums])


def _selects_of(
    n_prompts: int, select: Select | None, per_prompt: Sequence[Select | None] | None
) -> list[SelectSpec | None]:
    default = coerce_select(select)
    if per_prompt is None:
        return [default] * n_prompts
    if len(per_prompt) != n_prompts:
        raise SettingsError(f"per_prompt_selects has {len(per_prompt)} entries for {n_prompts} prompts")
    return [default if one is None else coerce_select(one) for one in per_prompt]


def finished_prompt(i: int, output: Any, select: SelectSpec | None) -> FinishedPrompt:
    """What a RequestOutput says of prompt i, for the proof."""
    completion = output.outputs[0]
    if output.prompt_token_ids is None or completion.finish_reason == "error":
        raise EngineError(f"prompt {i}: the engine finished it with an error")
    return FinishedPrompt(
        i, f"request {output.request_id}", output.prompt_token_ids, completion.token_ids, select
    )


def capture_result(
    rows: ProvenRows, stream: Stream, shape: StreamShape, outputs: Sequence[Any], engine: TappedEngine
) -> CaptureResult:
    """Proven rows of one stream as a result."""
    req_ids = [output.request_id for output in outputs]
    labels = RowLabels(req_ids, rows.index.position, rows.index.token_id, rows.n_rows)
    layouts = {
        layer_id: {"width": shape.width, **layout}
        for layer_id, layout in engine.layouts(stream).items()
        if layer_id in shape.layer_ids
    }
    return CaptureResult(
        layers=dict(zip(shape.layer_ids, rows.values[stream], strict=True)),
        meta=dict.fromkeys(shape.layer_ids, labels),
        outputs=outputs,
        layouts=layouts or None,
        gates=rows.gates,
    )
