from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from easysteer_data.errors import CorpusError, SettingsError
from easysteer_data.ledger import tokenizer_fingerprint
from easysteer_data.tokens import load_tokenizer, tokenize
from easysteer_data.types import Prompt
from tests.tiny import SENTENCES, save_tokenizer

unhurried = settings(deadline=None)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizers") / "plain"
    save_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def bos_model(model: Path) -> Path:
    """The same tokenizer, but one that puts BOS, whose id is 0, before each text."""
    folder = model.parent / "bos"
    save_tokenizer(folder)
    alter(
        folder,
        post_processor={
            "type": "TemplateProcessing",
            "single": [
                {"SpecialToken": {"id": "<s>", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
            ],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}},
        },
    )
    return folder


def alter(folder: Path, **changes: Any) -> None:
    file = folder / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def prompts_of(*texts: str) -> list[Prompt]:
    return [Prompt(index=i, id=f"p{i}", text=text, source=f"a.txt:{i + 1}") for i, text in enumerate(texts)]


def ids_of(folder: Path, text: str) -> tuple[int, ...]:
    """The Rust tokenizer's ids, without transformers."""
    return tuple(Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids)


@pytest.mark.parametrize("fixture", ["model", "bos_model"])
def test_ids_are_those_of_each_text_alone_with_special_tokens(
    fixture: str, request: pytest.FixtureRequest
) -> None:
    folder = request.getfixturevalue(fixture)
    texts = [*SENTENCES, " lead", "tail ", "\r\n", "🙂", "e\u0301"] * 250  # more than one batch
    prompts = prompts_of(*texts)
    tokenised, ledger = tokenize(prompts, load_tokenizer(str(folder)), max_model_len=512, max_tokens=1)
    expected = {text: ids_of(folder, text) for text in set(texts)}
    assert [prompt.token_ids for prompt in tokenised] == [expected[text] for text in texts]
    assert [(p.id, p.text, p.source) for p in tokenised] == [(p.id, p.text, p.source) for p in prompts]
    lengths = [len(expected[text]) for text in texts]
    assert (ledger.n_prompts, ledger.n_tokens) == (len(texts), sum(lengths))
    assert (ledger.min_prompt_tokens, ledger.max_prompt_tokens) == (min(lengths), max(lengths))
    assert ledger.bos_token_id == 0
    assert ledger.n_bos == (len(texts) if fixture == "bos_model" else 0)


@unhurried
@given(texts=st.lists(st.text(st.characters(codec="utf-8"), min_size=1), min_size=1, max_size=5))
def test_a_batch_equals_its_texts_alone_for_any_text(bos_model: Path, texts: list[str]) -> None:
    tokenizer = load_tokenizer(str(bos_model))
    prompts = [prompt for prompt in prompts_of(*texts) if not prompt.text.startswith("<s>")]
    for prompt in prompts:
        [alone], _ = tokenize([prompt], tokenizer, max_model_len=10_000, max_tokens=1)
        assert alone.token_ids == ids_of(bos_model, prompt.text)
    if prompts:
        tokenised, _ = tokenize(prompts, tokenizer, max_model_len=10_000, max_tokens=1)
        assert [prompt.token_ids for prompt in tokenised] == [ids_of(bos_model, p.text) for p in prompts]


def test_a_bos_in_the_text_counts_where_the_tokenizer_adds_none(model: Path) -> None:
    tokenised, ledger = tokenize(
        prompts_of("<s>one", "two"), load_tokenizer(str(model)), max_model_len=512, max_tokens=1
    )
    assert tokenised[0].token_ids[0] == 0
    assert ledger.n_bos == 1


def test_a_doubled_bos_is_refused_naming_the_prompt(bos_model: Path) -> None:
    with pytest.raises(CorpusError) as raised:
        tokenize(prompts_of("one", "<s>two"), load_tokenizer(str(bos_model)), max_model_len=512, max_tokens=1)
    assert str(raised.value).startswith("a.txt:2: prompt 'p1' begins with two BOS tokens")
    assert "'<s>'" in str(raised.value)


def test_a_tokenizer_without_bos_counts_none(tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    config = tmp_path / "tokenizer_config.json"
    config.write_text(
        json.dumps({k: v for k, v in json.loads(config.read_text()).items() if k != "bos_token"})
    )
    tokenizer = load_tokenizer(str(tmp_path))
    _, ledger = tokenize(prompts_of("<s><s>one"), tokenizer, max_model_len=512, max_tokens=1)
    assert (ledger.bos_token_id, ledger.n_bos) == (None, 0)


@pytest.mark.parametrize("max_tokens", [1, 5])
def test_a_prompt_fits_if_all_new_tokens_fit_beside_it_in_the_window(model: Path, max_tokens: int) -> None:
    tokenizer = load_tokenizer(str(model))
    [prompt], _ = tokenize(prompts_of(SENTENCES[0]), tokenizer, max_model_len=512, max_tokens=1)
    n_tokens = len(prompt.token_ids)
    window = n_tokens + max_tokens
    tokenize([prompt], tokenizer, max_model_len=window, max_tokens=max_tokens)
    with pytest.raises(CorpusError, match=f"has {n_tokens} tokens, more than the {n_tokens - 1} that"):
        tokenize([prompt], tokenizer, max_model_len=window - 1, max_tokens=max_tokens)


def test_the_first_over_long_prompt_is_named_with_its_length_the_window_and_the_number_of_others(
    model: Path,
) -> None:
    tokenizer = load_tokenizer(str(model))
    prompts = prompts_of("fits", "x" * 40, "fits", "x" * 99, "x" * 41)
    lengths = [len(ids_of(model, prompt.text)) for prompt in prompts]
    with pytest.raises(CorpusError) as raised:
        tokenize(prompts, tokenizer, max_model_len=20, max_tokens=4)
    assert str(raised.value).startswith(
        f"a.txt:2: prompt 'p1' has {lengths[1]} tokens, more than the 16 that max_model_len=20 leaves beside "
        f"max_tokens=4; 2 other prompts are too long as well, the longest has {lengths[3]}"
    )


def test_a_text_longer_than_the_tokenizers_own_length_is_not_cut(model: Path, tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"model_max_length": 8}))
    alter(
        tmp_path,
        truncation={"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0},
    )
    text = "a long text " * 20
    [prompt], _ = tokenize(prompts_of(text), load_tokenizer(str(tmp_path)), max_model_len=512, max_tokens=1)
    assert prompt.token_ids == ids_of(model, text)
    assert len(prompt.token_ids) > 8


def test_a_prompt_without_tokens_is_refused(model: Path, bos_model: Path) -> None:
    with pytest.raises(CorpusError, match=r"a\.txt:2: prompt 'p1' has no tokens"):
        tokenize(prompts_of("one", ""), load_tokenizer(str(model)), max_model_len=512, max_tokens=1)
    [prompt], _ = tokenize(prompts_of(""), load_tokenizer(str(bos_model)), max_model_len=512, max_tokens=1)
    assert prompt.token_ids == (0,)


def test_no_prompts_are_refused(model: Path) -> None:
    with pytest.raises(CorpusError, match="no prompts"):
        tokenize([], load_tokenizer(str(model)), max_model_len=512, max_tokens=1)


@pytest.mark.parametrize(("max_model_len", "max_tokens"), [(16, 0), (16, 16), (16, 17)])
def test_a_window_without_room_for_a_prompt_is_refused(
    model: Path, max_model_len: int, max_tokens: int
) -> None:
    tokenizer = load_tokenizer(str(model))
    with pytest.raises(SettingsError, match=f"max_tokens={max_tokens} must be 1 or more and below"):
        tokenize(prompts_of("one"), tokenizer, max_model_len=max_model_len, max_tokens=max_tokens)


def test_over_long_prompts_are_skipped_and_the_others_keep_their_ids(model: Path) -> None:
    prompts = prompts_of("one", SENTENCES[0] * 3, "two", SENTENCES[1] * 3)
    kept, ledger = tokenize(
        prompts, load_tokenizer(str(model)), max_model_len=12, max_tokens=1, over_long="skip"
    )
    assert [(prompt.index, prompt.id) for prompt in kept] == [(0, "p0"), (1, "p2")]
    assert (ledger.n_prompts, ledger.skipped) == (2, ("p1", "p3"))
    with pytest.raises(CorpusError, match="p1"):
        tokenize(prompts[1::2], load_tokenizer(str(model)), max_model_len=12, max_tokens=1, over_long="skip")


@pytest.mark.parametrize("side", ["truncate_left", "truncate_right"])
def test_over_long_prompts_are_cut_on_the_named_side_and_bos_stays(bos_model: Path, side: Any) -> None:
    text = SENTENCES[0] * 3
    whole = ids_of(bos_model, text)
    (fits, cut), ledger = tokenize(
        prompts_of("one", text),
        load_tokenizer(str(bos_model)),
        max_model_len=12,
        max_tokens=2,
        over_long=side,
    )
    assert cut.token_ids == (whole[:10] if side == "truncate_right" else (whole[0], *whole[-9:]))
    assert cut.fields["over_long"] == f"{side}: {len(whole) - 10} of {len(whole)} tokens cut"
    assert (fits.fields, ledger.n_truncated) == ({}, 1)


def test_an_unknown_policy_is_refused(model: Path) -> None:
    policy: Any = "drop"
    with pytest.raises(SettingsError, match="over_long is 'drop'; choose one of fail, skip"):
        tokenize(
            prompts_of("one"), load_tokenizer(str(model)), max_model_len=9, max_tokens=1, over_long=policy
        )


def test_the_fingerprint_is_that_of_the_files_and_not_of_calls_or_folders(
    model: Path, tmp_path: Path
) -> None:
    tokenizer = load_tokenizer(str(model))
    before = tokenizer_fingerprint(tokenizer)
    tokenizer(["a", "a longer text"], truncation=True, max_length=2, padding=True)
    assert tokenizer_fingerprint(tokenizer) == before
    save_tokenizer(tmp_path)
    assert tokenizer_fingerprint(load_tokenizer(str(tmp_path))) == before
    _, ledger = tokenize(prompts_of("one"), tokenizer, max_model_len=9, max_tokens=1)
    assert ledger.tokenizer_sha256 == before
    assert ledger.tokenizer_class == type(tokenizer).__name__


def test_another_way_to_tokenise_has_another_fingerprint(
    model: Path, bos_model: Path, tmp_path: Path
) -> None:
    save_tokenizer(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    alter(tmp_path, model=content["model"] | {"merges": content["model"]["merges"][:-1]})
    folders = [model, bos_model, tmp_path]
    assert len({tokenizer_fingerprint(load_tokenizer(str(folder))) for folder in folders}) == 3


@pytest.mark.parametrize("name", ["./missing", "/missing/model", "outputs/models/missing", "~/missing"])
def test_a_missing_model_folder_is_named_at_once(name: str) -> None:
    with pytest.raises(SettingsError) as raised:
        load_tokenizer(name)
    assert str(raised.value).startswith(f"model {name!r}: there is no such folder (looked for /")


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=f"model '{tmp_path}': its tokenizer can't be loaded"):
        load_tokenizer(str(tmp_path))
