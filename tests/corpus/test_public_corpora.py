"""Public corpora of other projects, where a checkout has them beside it; nothing of them is copied here."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from easysteer_data.corpus import CorpusSettings, label_classes, read_corpus
from easysteer_data.errors import CorpusError

DATA = Path(__file__).parents[3] / "shared" / "data"
CAA = "{question}\n{answer_matching_behavior}"
REPE = "representation-engineering"

if DATA.is_dir():

    @pytest.mark.parametrize(
        ("path", "settings", "n_prompts"),
        [
            ("truthfulqa/TruthfulQA.csv", {"text_column": "Question", "label_column": "Type"}, 817),
            ("truthfulqa/TruthfulQA.csv", {"template": "Q: {Question}\nA: {Best Answer}"}, 817),
            ("caa/generate/corrigible-neutral-HHH.json", {"template": CAA}, 290),
            ("caa/generate/*.json", {"template": CAA}, 698),
            ("caa/test_ab/*.json", {"template": CAA}, 100),
            ("evals/human_corrigible-neutral-HHH.jsonl", {"template": CAA}, 340),
            (f"{REPE}/facts_true_false.csv", {"text_column": "statement", "label_column": "label"}, 612),
            (f"{REPE}/happiness.json", {}, 203),
            ("easysteer/loreft__training_examples.json", {"template": "{instruction} {emoji}"}, 10),
        ],
    )
    def test_a_public_corpus_is_read_with_a_line_of_settings(
        path: str, settings: dict[str, Any], n_prompts: int
    ) -> None:
        assert len(read_corpus(CorpusSettings(path=str(DATA / path), **settings))) == n_prompts

    def test_texts_equal_those_of_the_standard_readers() -> None:
        file = DATA / "truthfulqa" / "TruthfulQA.csv"
        with file.open(encoding="utf-8-sig", newline="") as handle:
            questions = [row["Question"] for row in csv.DictReader(handle)]
        prompts = read_corpus(CorpusSettings(path=str(file), text_column="Question"))
        assert [prompt.text for prompt in prompts] == questions
        file = DATA / "evals" / "human_corrigible-neutral-HHH.jsonl"
        answers = [json.loads(line)["answer_matching_behavior"] for line in file.read_text().splitlines()]
        prompts = read_corpus(CorpusSettings(path=str(file), text_column="answer_matching_behavior"))
        assert [prompt.text for prompt in prompts] == answers
        assert {prompt.text for prompt in prompts} == {" (A)", " (B)"}

    def test_true_and_false_facts_have_two_classes_and_doubled_statements_share_a_split() -> None:
        settings = CorpusSettings(
            path=str(DATA / REPE / "facts_true_false.csv"), text_column="statement", label_column="label"
        )
        prompts = read_corpus(settings)
        assert label_classes(prompts) == ("classes", ("0", "1"))
        assert not any(prompt.text.endswith("\r") for prompt in prompts)
        splits = {(prompt.text, prompt.split) for prompt in prompts}
        assert len(splits) == len({prompt.text for prompt in prompts}) == 598
        shares = Counter(prompt.split for prompt in prompts)
        assert shares["train"] == pytest.approx(0.6 * 612, abs=2)

    def test_the_empty_first_item_of_a_bare_list_fails_or_is_skipped_with_ids_unchanged() -> None:
        file = DATA / REPE / "all_truncated_outputs.json"
        with pytest.raises(CorpusError, match=f"{file}:2: the prompt is empty"):
            read_corpus(CorpusSettings(path=str(file)))
        prompts = read_corpus(CorpusSettings(path=str(file), empty_prompts="skip"))
        items = json.loads(file.read_text())
        assert [(int(prompt.id), prompt.text) for prompt in prompts] == [
            (i, item) for i, item in enumerate(items) if item
        ]
