"""What is settled before the engine starts: a plan holds a corpus of any length in little memory."""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path

import pytest

from easysteer_data.capture_run import CapturePlan, plan_capture
from easysteer_data.corpus import corpus_hash, read_corpus
from easysteer_data.settings import ExperimentSettings, build
from easysteer_data.tokens import load_tokenizer, tokenize


def settings_of(folder: Path, model: Path, n_prompts: int, select: dict[str, object]) -> ExperimentSettings:
    corpus = folder / f"{n_prompts}.txt"
    corpus.write_text("".join(f"The city of {'x' * (i % 9)} is number {i}.\n" for i in range(n_prompts)))
    values = {
        "name": "test",
        "out": "unused",
        "model": {"path": str(model), "dtype": "float32"},
        "corpus": {"path": str(corpus)},
        "select": select,
    }
    return build(ExperimentSettings, values)


def test_the_plan_gives_the_corpus_as_it_was_read_and_tokenised(tiny_model: Path, tmp_path: Path) -> None:
    settings = settings_of(tmp_path, tiny_model, 30, {"span": {"substring": "number"}})
    plan = plan_capture(settings)
    expected, _ = tokenize(
        read_corpus(settings.corpus), load_tokenizer(str(tiny_model)), max_model_len=512, max_tokens=1
    )
    assert list(plan.prompts) == expected
    assert plan.corpus_sha256 == corpus_hash(expected)
    assert [
        select.max_rows(prompt.token_ids)
        for select, prompt in zip(plan.selects, expected, strict=True)
        if select
    ] == list(plan.n_rows)


@pytest.mark.parametrize("select", [{"prompt_positions": [-1]}, {"span": {"substring": "number"}}])
def test_a_prompt_takes_a_few_bytes_of_memory_once_it_is_planned(
    select: dict[str, object], tiny_model: Path, tmp_path: Path
) -> None:
    def planned(n_prompts: int) -> tuple[CapturePlan, int]:
        settings = settings_of(tmp_path, tiny_model, n_prompts, select)
        gc.collect()
        tracemalloc.start()
        try:
            plan = plan_capture(settings)
            gc.collect()
            return plan, tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()

    planned(10)  # what is loaded once
    (_, short), (plan, long) = planned(500), planned(3500)
    assert len(plan.prompts) == 3500
    assert (long - short) / 3000 < 64
