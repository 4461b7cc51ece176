"""Chats, token ids and texts on one engine: each is run with the tokens that it stands for, and one BOS."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from easysteer_data.errors import SettingsError
from easysteer_data.hidden_states import CaptureResult, capture
from easysteer_data.hidden_states.prompts import prepare_prompts
from tests import oracle
from tests.tiny import save_tiny

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
USER = {"role": "user", "content": "Is Oslo in Norway?"}
ASSISTANT = {"role": "assistant", "content": "Oslo is in Norway."}
MORE = {"role": "user", "content": "More"}


@pytest.fixture(scope="session")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama whose tokenizer begins texts with BOS, id 0, has a template, and asks for left padding."""
    folder = save_tiny(tmp_path_factory.mktemp("models") / "chat")
    bos = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    text = [{"Sequence": {"id": name, "type_id": 0}} for name in ("A", "B")]
    alter(
        folder / "tokenizer.json",
        post_processor={
            "type": "TemplateProcessing",
            "single": [bos, text[0]],
            "pair": text,
            "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}},
        },
        padding={
            "strategy": {"Fixed": 64},
            "direction": "Left",
            "pad_to_multiple_of": None,
            "pad_id": 2,
            "pad_type_id": 0,
            "pad_token": "<pad>",
        },
    )
    alter(folder / "tokenizer_config.json", padding_side="left", chat_template=TEMPLATE)
    return folder


def alter(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.fixture
def chat_llm(engines: Any, chat_model: Path) -> Any:
    return engines.get(chat_model)


def ids_of(folder: Path, text: str) -> list[int]:
    """The ids of exactly this text: no BOS but the text's own, no padding; by the Rust tokenizer alone."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids


def assert_reads(result: CaptureResult, folder: Path, texts: list[str]) -> None:
    """Every row is at the position of a real token of its text, and is Hugging Face's row for it."""
    assert len(result) == len(texts)
    for i, text in enumerate(texts):
        token_ids = ids_of(folder, text)
        assert result.sample_positions(i) == list(range(len(token_ids)))
        assert result.sample_token_ids(i) == token_ids
        assert token_ids.count(0) == 1
        expected = oracle.block_outputs(folder, token_ids)
        for layer_id, rows in result.sample(i).items():
            assert oracle.relative_difference(rows, expected[layer_id]) < 1e-4


def test_chats_of_one_and_many_turns_texts_and_ids_share_a_batch(chat_llm: Any, chat_model: Path) -> None:
    prompts = [
        [USER],
        "The city of Oslo",
        [{"role": "system", "content": "Brief!"}, USER, ASSISTANT, MORE],
        {"prompt_token_ids": ids_of(chat_model, "<s>A quick brown fox")},
        ids_of(chat_model, "<s>Numbers"),
        {"prompt": "digits"},
    ]
    texts = [
        "<s>user: Is Oslo in Norway?\nassistant:",
        "<s>The city of Oslo",
        "<s>system: Brief!\nuser: Is Oslo in Norway?\nassistant: Oslo is in Norway.\nuser: More\nassistant:",
        "<s>A quick brown fox",
        "<s>Numbers",
        "<s>digits",
    ]
    result = capture(chat_llm, prompts)
    assert_reads(result, chat_model, texts)
    assert [output.prompt for output in result.outputs[::2]][:2] == [texts[0], texts[2]]


def test_a_trailing_assistant_turn_is_left_open_and_continued(chat_llm: Any, chat_model: Path) -> None:
    start = {"role": "assistant", "content": "Oslo is"}
    result = capture(chat_llm, [[USER, start]])
    assert_reads(result, chat_model, ["<s>user: Is Oslo in Norway?\nassistant: Oslo is"])


def test_templated_text_with_a_bos_is_refused_by_default_and_named(chat_llm: Any) -> None:
    prompts = ["fine", "<s>user: hello\nassistant:", {"prompt": "<s>hello"}]
    with pytest.raises(SettingsError) as raised:
        capture(chat_llm, prompts)
    assert str(raised.value).startswith(
        "prompt 1 begins with more than one BOS token, '<s>' (1 other prompts"
    )


def test_templated_text_is_repaired_to_the_chats_own_tokens(chat_llm: Any, chat_model: Path) -> None:
    text = "<s>user: Is Oslo in Norway?\nassistant:"
    with pytest.warns(UserWarning, match="prompt 1 begins") as caught:
        result = capture(chat_llm, [[USER], text, {"prompt": text}, "plain"], bos="repair")
    assert len(caught) == 1
    assert_reads(result, chat_model, [text, text, text, "<s>plain"])
    assert torch.equal(result.sample(0)[2], result.sample(1)[2])


def test_a_kept_bos_is_run_twice_as_the_engine_would(chat_llm: Any, chat_model: Path) -> None:
    result = capture(chat_llm, ["<s>hello"], bos="keep")
    assert result.sample_token_ids(0) == [0, *ids_of(chat_model, "<s>hello")]


def test_prepared_prompts_are_left_as_they_are(chat_llm: Any) -> None:
    prepared = prepare_prompts(chat_llm, [[USER], "text", {"prompt_token_ids": [0, 0, 5]}, [0, 0, 5]])
    assert prepared[1:] == ["text", {"prompt_token_ids": [0, 0, 5]}, [0, 0, 5]]
    assert prepare_prompts(chat_llm, prepared) == prepared


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ("one text", "prompts is a single prompt"),
        ({"prompt": "one text"}, "prompts is a single prompt"),
        ([USER], "prompt 0 is a single message; a chat is a list of messages"),
        (["fine", []], "prompt 1 is an empty list"),
        (["fine", [USER, {"content": "x"}]], "prompt 1: message 1 has no role"),
        (["fine", [{"text": "x"}]], "prompt 1: message 0 has no role"),
        ([[USER, "x"]], "prompt 0: message 1 has no role"),
    ],
)
def test_prompts_that_are_neither_chat_nor_text_are_refused_by_name(
    chat_llm: Any, prompts: Any, message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        capture(chat_llm, prompts)


def test_a_chat_for_a_model_without_a_template_names_the_prompt(llm: Any) -> None:
    with pytest.raises(SettingsError, match="prompt 1: this tokenizer has no chat template"):
        capture(llm, ["fine", [USER]])
