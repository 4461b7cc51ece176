from __future__ import annotations

import datetime
import resource
import tempfile
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from easysteer_data.corpus import PromptStore, corpus_hash
from easysteer_data.errors import RunError
from easysteer_data.types import SPLITS, Prompt

unhurried = settings(deadline=None)

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
messages = st.lists(st.fixed_dictionaries({"role": st.text(), "content": values}), max_size=3).map(tuple)
prompts = st.builds(
    Prompt,
    index=st.just(0),
    id=st.text(),
    text=st.text(st.characters()),  # lone surrogates too
    source=st.text(),
    label=st.none() | st.text() | st.integers() | st.floats(allow_nan=False) | st.booleans(),
    group=st.none() | st.text(),
    split=st.sampled_from(SPLITS),
    fields=st.dictionaries(st.text(), values, max_size=3),
    token_ids=st.lists(st.integers(0, 2**31 - 1)).map(tuple),
    messages=st.none() | messages,
)


def many(n: int) -> list[Prompt]:
    return [
        Prompt(index=i, id=f"id {i}", text=f"Text number {i}. " * 5, source=f"a.csv:{i}", token_ids=(i,) * 30)
        for i in range(n)
    ]


@unhurried
@given(st.lists(prompts, max_size=4))
def test_every_prompt_comes_back_as_it_was_with_the_types_of_its_values(corpus: list[Prompt]) -> None:
    corpus = [replace(prompt, index=i) for i, prompt in enumerate(corpus)]
    store = PromptStore(corpus)
    assert list(map(repr, store)) == list(map(repr, corpus))  # 1, 1.0 and True are equal, but print apart


def test_it_is_read_as_a_list_is() -> None:
    corpus = many(7)
    store = PromptStore(iter(corpus))
    assert len(store) == 7
    assert [store[-1], store[0]] == [corpus[-1], corpus[0]]
    for chosen in (slice(2, 5), slice(None, None, -2), slice(5, 99), slice(9, 9)):
        assert store[chosen] == corpus[chosen]
    for place in (7, -8):
        with pytest.raises(IndexError):
            store[place]
    assert list(PromptStore(())) == []


def test_a_value_that_json_does_not_know_is_its_text_and_the_corpus_hash_stays() -> None:
    day = datetime.date(2026, 2, 3)
    corpus = [replace(prompt, fields={"day": day, "n": 1.0}) for prompt in many(2)]
    store = PromptStore(corpus)
    assert store[1].fields == {"day": "2026-02-03", "n": 1.0}
    assert corpus_hash(store) == corpus_hash(corpus)


def test_threads_that_read_at_once_get_their_own_prompts() -> None:
    corpus = many(200)
    store = PromptStore(corpus)
    with ThreadPoolExecutor(8) as threads:
        passes = list(threads.map(lambda _: list(store), range(16)))
    assert all(read == corpus for read in passes)


def test_a_prompt_takes_eight_bytes_of_memory_however_long_it_is() -> None:
    n = 5000
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        store = PromptStore(many(1)[0] for _ in range(n))
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(store) == n
    assert after - before < 10 * n + 20_000  # the file's buffer, and what the array grows ahead


def test_a_folder_for_temporary_files_that_is_missing_or_full_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(RunError, match=r"nowhere.*TMPDIR"):
        PromptStore(many(1))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    limits: tuple[Any, Any] = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(RunError, match=r"File too large.*TMPDIR"):
            PromptStore(many(1000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
