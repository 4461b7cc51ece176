from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from easysteer_data.errors import CorpusError, RunError
from easysteer_data.shards import LabelHeader, RunHeader, RunWriter, StreamHeader, open_run
from easysteer_data.steer_options import TrialPromptSettings
from easysteer_data.steer_trial.prompts import Material, given_prompts, held_out_material, spread
from easysteer_data.types import CapturedPrompt, CapturedShard, Prompt, RowIndex, Split

VALIDATION = TrialPromptSettings()


def material_of(
    folder: Path, prompts: Sequence[Prompt], settings: TrialPromptSettings = VALIDATION
) -> Material:
    """What is read of a run that holds a row of each prompt."""
    stream, n = StreamHeader((0,), 4, "float32"), len(prompts)
    header = RunHeader(
        fingerprint="made-for-a-test",
        settings={},
        model={"name": "made-up"},
        tokenizer={},
        corpus={"name": "made-up"},
        versions={},
        layer_convention="made up",
        streams={"hidden_states": stream},
        label=LabelHeader("classes", ("0", "1")),
        plan=((0, n),),
    )
    numbers = torch.arange(n, dtype=torch.int32)
    index = RowIndex(numbers, torch.zeros_like(numbers), numbers)
    captured = tuple(CapturedPrompt(prompt, 1) for prompt in prompts)
    writer = RunWriter.open(folder, header)
    writer.write(CapturedShard(0, captured, index, {"hidden_states": {0: torch.ones(n, 4)}}))
    writer.close()
    return held_out_material(open_run(folder), settings)


def question(
    row: int, split: Split, answers: tuple[list[int], list[int]], labels: tuple[int, int] = (1, 0)
) -> list[Prompt]:
    """Both sides of question `row`, whose tokens 5 and 6 both answers follow."""
    return [
        Prompt(
            2 * row + place,
            f"{row}-{side}",
            f"Q{row}? ({letter})",
            f"made.json:{row}",
            label,
            f"Q{row}",
            split,
            {"answer": f"({letter})", "letter": letter},
            (5, 6, *token_ids),
        )
        for place, (side, letter, token_ids, label) in enumerate(
            zip(("positive", "negative"), "AB", answers, labels, strict=True)
        )
    ]


def test_a_question_is_asked_up_to_the_first_token_in_which_its_answers_differ(tmp_path: Path) -> None:
    found = material_of(
        tmp_path,
        [*question(0, "train", ([7, 8], [7, 9])), *question(1, "validation", ([7, 8, 4], [7, 9, 4]))],
    )
    (asked,) = found.questions
    assert (asked.prompt.id, asked.prompt.text, asked.prompt.token_ids) == ("1", "Q1? (", (5, 6, 7))
    assert (asked.matching, asked.other) == (8, 9)
    assert found.prompts == (asked.prompt,)
    assert found.origin == "1 prompts and 1 questions of the split validation"


def test_the_matching_answer_is_that_of_the_vector_s_positive_class(tmp_path: Path) -> None:
    (asked,) = material_of(tmp_path, question(0, "validation", ([8], [9]), labels=(0, 1))).questions
    assert (asked.matching, asked.other) == (9, 8)


def test_answers_of_which_one_begins_the_other_are_no_question(tmp_path: Path) -> None:
    found = material_of(
        tmp_path, [*question(0, "validation", ([8], [8, 9])), *question(1, "validation", ([8], [9]))]
    )
    assert [one.prompt.id for one in found.questions] == ["1"]


def test_texts_are_completed_evenly_spaced_over_the_split(tmp_path: Path) -> None:
    splits: list[Split] = ["validation", "test"]
    prompts = [
        Prompt(i, str(i), f"text {i}", f"made.txt:{i}", i % 2, None, splits[i % 2], {}, (i + 1, 3))
        for i in range(20)
    ]
    found = material_of(tmp_path, prompts, TrialPromptSettings(split="test", n_prompts=5))
    assert [prompt.id for prompt in found.prompts] == ["1", "5", "9", "13", "17"]
    assert found.prompts[1].token_ids == (6, 3)
    assert (found.questions, found.origin) == ((), "5 prompts of the split test")


def test_an_empty_split_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"no prompt in the split 'validation'; give steer\.prompts\.given"):
        material_of(tmp_path, question(0, "train", ([8], [9])))


@pytest.mark.parametrize(("n", "n_most", "expected"), [(3, 5, [0, 1, 2]), (10, 4, [0, 2, 5, 7]), (4, 0, [])])
def test_spreading_keeps_at_most_so_many(n: int, n_most: int, expected: list[int]) -> None:
    assert spread(range(n), n_most) == expected


def test_given_texts_and_a_file_of_them_are_tokenised_alike(tiny_model: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("The city of Paris\nThe city of Oslo\n")
    texts = ["The city of Paris", "The city of Oslo"]
    found = given_prompts(texts, str(tiny_model), 64, 8)
    assert given_prompts(str(file), str(tiny_model), 64, 8) == found
    assert [prompt.text for prompt in found] == texts
    assert all(prompt.token_ids for prompt in found)


def test_a_given_text_that_is_too_long_is_named(tiny_model: Path) -> None:
    with pytest.raises(CorpusError, match=r"steer\.prompts\.given, entry 2: prompt '1' has .* tokens"):
        given_prompts(["short", "digits " * 60], str(tiny_model), 64, 8)
