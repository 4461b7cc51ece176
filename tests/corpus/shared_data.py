"""One line of config for each public corpus that others use, and files of the same shapes where they are not.

The folder is that of the environment variable EASYSTEER_SHARED_DATA, or `shared/data` beside the checkout.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import hydra
from omegaconf import OmegaConf

from easysteer_data.corpus import CorpusSettings
from easysteer_data.settings import build

CONF = str(Path(__file__).parents[2] / "conf")

# File, below the folder -> the command line's overrides beside corpus.path.
CONFIGS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "truthfulqa/TruthfulQA.csv": (
            "corpus=csv",
            "corpus.text_column=Question",
            "corpus.label_column=Type",
            "corpus.fields=[Best Answer]",
        ),
        "caa/generate/corrigible-neutral-HHH.json": ("corpus=caa", "corpus.balance_letters=true"),
        "caa/generate/refusal.json": ("corpus=caa", "corpus.balance_letters=true"),
        "caa/test_ab/corrigible-neutral-HHH.json": ("corpus=caa",),
        "caa/test_ab/refusal.json": ("corpus=caa",),
        "evals/human_corrigible-neutral-HHH.jsonl": ("corpus=caa",),
        "representation-engineering/facts_true_false.csv": (
            "corpus=csv",
            "corpus.text_column=statement",
            "corpus.label_column=label",
        ),
        "representation-engineering/happiness.json": ("corpus=json",),
        "representation-engineering/sadness.json": ("corpus=json",),
        "representation-engineering/all_truncated_outputs.json": ("corpus=json", "corpus.empty_prompts=skip"),
        "easysteer/creative_writing__contrastive_pairs.json": (
            "corpus=pairs",
            "corpus.positive_column=creative",
            "corpus.negative_column=mundane",
        ),
        "easysteer/improve_reasoning__reasoning_pairs.json": (
            "corpus=pairs",
            "corpus.question_column=question",
            "corpus.positive_column=sound",
            "corpus.negative_column=flawed",
        ),
        "easysteer/loreft__training_examples.json": (
            "corpus=json",
            "corpus.text_column=instruction",
            "corpus.fields=[emoji]",
        ),
        "easysteer/steerable_chatbot__style_examples.json": ("corpus=json", "corpus.label_column=key"),
    }
)


def settings_for(folder: Path, file: str) -> CorpusSettings:
    """Compose the part of a stage's config that the line is for, and build its settings as a stage does."""
    group, *overrides = CONFIGS[file]
    with hydra.initialize_config_dir(CONF, version_base="1.3"):
        config = hydra.compose(overrides=[f"+{group}", *overrides, f"corpus.path={folder / file}"])
    values: Any = OmegaConf.to_container(config.corpus, resolve=True)
    return build(CorpusSettings, values)


def shared_folder(made: Path) -> Path:
    """Return the folder of the public corpora, or `made`, filled with files of the same shapes."""
    beside = Path(__file__).parents[3] / "shared" / "data"
    folder = Path(os.environ.get("EASYSTEER_SHARED_DATA", beside))
    if folder.is_dir():
        return folder
    for name, content in _look_alikes().items():
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_bytes(content)
    return made


def _look_alikes() -> dict[str, bytes]:
    questions = [f"Would you change {i}?\n\nChoices:\n (A) No\n (B) Yes" for i in range(12)]
    caa = [_answers(question, i % 3 == 0, "") for i, question in enumerate(questions)]
    evals = [_answers(question, i % 2 == 0, " ") for i, question in enumerate(questions)]
    facts = "".join(f'"Fact {i % 10}, as told.",{i % 10 % 2}\r\n' for i in range(12))
    header = "Type,Category,Question,Best Answer\r\n"
    truths = "".join(f'Adversarial,Myths,"Is it so, {i}?","No; ""never"""\r\n' for i in range(5))
    sides = [{"question": f"Why {i}?", "sound": f"So {i}.", "flawed": f"Not {i}."} for i in range(5)]
    pairs = [{"creative": f"A ghost {i}.", "mundane": f"A shop {i}."} for i in range(5)]
    emoji = [{"instruction": f"Who am I, {i}?", "emoji": "👤❓🤷‍♂️"} for i in range(5)]
    styles = {"adult": ["A bar.", "A spa."], "child": ["A zoo.", "A slide."]}
    contents: dict[str, object] = {
        "caa/generate/corrigible-neutral-HHH.json": caa,
        "caa/generate/refusal.json": caa,
        "caa/test_ab/corrigible-neutral-HHH.json": caa,
        "caa/test_ab/refusal.json": caa,
        "representation-engineering/happiness.json": ["You win.", "You laugh."],
        "representation-engineering/sadness.json": ["You lose.", "You weep."],
        "representation-engineering/all_truncated_outputs.json": ["", "That game", "Oh w"],
        "easysteer/creative_writing__contrastive_pairs.json": pairs,
        "easysteer/improve_reasoning__reasoning_pairs.json": sides,
        "easysteer/loreft__training_examples.json": emoji,
        "easysteer/steerable_chatbot__style_examples.json": styles,
    }
    return {
        "truthfulqa/TruthfulQA.csv": f"\ufeff{header}{truths}".encode(),
        "evals/human_corrigible-neutral-HHH.jsonl": "\n".join(map(json.dumps, evals)).encode(),
        "representation-engineering/facts_true_false.csv": f"statement,label\r\n{facts}".encode(),
    } | {name: json.dumps(content, indent=2).encode() for name, content in contents.items()}


def _answers(question: str, a_matches: bool, space: str) -> dict[str, str]:
    answers = [f"{space}(A)", f"{space}(B)"] if a_matches else [f"{space}(B)", f"{space}(A)"]
    names = ["answer_matching_behavior", "answer_not_matching_behavior"]
    return {"question": question, **dict(zip(names, answers, strict=True))}
