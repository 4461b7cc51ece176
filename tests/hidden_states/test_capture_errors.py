"""Bad input has a clear error, and the engine stays usable after any of them."""

from __future__ import annotations

from typing import Any

import pytest

from easysteer_data.engine.feed import Feed
from easysteer_data.engine.session import CaptureSession
from easysteer_data.engine.tapped import TappedEngine
from easysteer_data.errors import EngineError, SettingsError
from easysteer_data.hidden_states import capture, get_all_hidden_states_generate
from easysteer_data.select import SelectSpec

PROMPTS = ["The city of Paris is in France.", "A quick brown fox"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"layers": [3]}, r"layers \[3\] are not hooked; this engine has layers 0 to 2"),
        ({"layers": []}, "not hooked"),
        ({"dtype": "int8"}, "dtype 'int8' can't hold rows"),
        ({"stream": "router_logits"}, "router_logits' is not tapped in this engine"),
        ({"per_prompt_selects": [None]}, "1 entries for 2 prompts"),
        ({"select": {"prompt_position": [0]}}, "prompt_positions"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"n": 2}, "n=2"),
        ({"lora_request": "adapter"}, "LoRA adapter are not supported"),
        ({"extra_args": {}}, "extra_args: set by the capture itself"),
        ({"steering": "happy"}, "steering is a SteeringSpec, or a list"),
    ],
)
def test_unusable_arguments_are_refused_by_name(llm: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        capture(llm, PROMPTS, **arguments)
    assert len(capture(llm, PROMPTS)) == 2


def test_an_exception_on_the_way_aborts_the_requests_and_stops_the_stream(llm: Any) -> None:
    def capture_and_fail() -> None:
        engine = TappedEngine(llm)
        with CaptureSession(engine, {"hidden_states": engine.shape("hidden_states", None)}):
            from easysteer_data.engine.feed import Request, Sampling

            feed = Feed(llm, Sampling(20, {"ignore_eos": True}))
            for _ in feed.run([Request(0, PROMPTS[0], None)]):
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        capture_and_fail()
    assert llm.llm_engine.get_num_unfinished_requests() == 0
    assert len(capture(llm, PROMPTS)) == 2


def test_requests_of_others_are_not_swallowed(llm: Any) -> None:
    llm.enqueue(PROMPTS, use_tqdm=False)
    with pytest.raises(EngineError, match="requests of others"):
        capture(llm, PROMPTS)
    assert len(llm.wait_for_completion(use_tqdm=False)) == 2
    assert len(capture(llm, PROMPTS)) == 2


def test_captures_can_not_be_nested(llm: Any) -> None:
    engine = TappedEngine(llm)
    with CaptureSession(engine, {"hidden_states": engine.shape("hidden_states", [0])}):
        with pytest.raises(EngineError, match="can't be nested"):
            capture(llm, PROMPTS)
    assert len(capture(llm, PROMPTS)) == 2


def test_a_failure_inside_the_worker_reaches_the_caller_with_its_traceback(llm: Any) -> None:
    from easysteer_data.engine.feed import Request, Sampling

    class Broken(SelectSpec):
        def to_wire(self) -> dict[str, Any]:
            return {"prompt": "nothing"}

    engine = TappedEngine(llm)
    shapes = {"hidden_states": engine.shape("hidden_states", [0])}
    with CaptureSession(engine, shapes) as session:
        feed = Feed(llm, Sampling(1, {}))
        list(feed.run([Request(0, PROMPTS[0], Broken(prompt="all"))]))
        with pytest.raises(EngineError, match="SettingsError"):
            session.fetch()
    assert len(capture(llm, PROMPTS)) == 2


def test_the_wrapper_refuses_lists_beside_a_select(llm: Any) -> None:
    with pytest.raises(SettingsError, match="can't be combined"):
        get_all_hidden_states_generate(llm, PROMPTS, positions=[0], select={"prompt": "all"})
    with pytest.raises(ValueError, match="positions"):
        get_all_hidden_states_generate(llm, PROMPTS, positions=[])


@pytest.mark.parametrize("length", [512, 600])
def test_a_prompt_that_leaves_no_room_is_named_and_the_engine_stays_usable(llm: Any, length: int) -> None:
    prompts = [{"prompt_token_ids": [5] * n} for n in (4, length, 6)]  # the window has 512 tokens
    with pytest.raises(SettingsError, match=r"prompt 1: vLLM refuses it"):
        capture(llm, prompts)
    whole = {"prompt_token_ids": [5] * 511}
    assert capture(llm, [prompts[0], whole]).rows(0).shape[0] == 4 + 511
