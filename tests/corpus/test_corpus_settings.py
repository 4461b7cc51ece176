from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from easysteer_data.corpus import CorpusSettings, SplitSettings
from easysteer_data.errors import SettingsError

CONF = Path(__file__).parents[2] / "conf"
PAIR = {"positive_column": "a", "negative_column": "b"}
QUESTION = {**PAIR, "question_column": "q"}
NAMES = sorted(file.stem for file in (CONF / "corpus").glob("*.yaml"))


def composed(name: str, *overrides: str) -> dict[str, Any]:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose(overrides=[f"+corpus={name}", *overrides])
    values = OmegaConf.to_container(config, resolve=True)
    assert isinstance(values, dict)
    return dict(values["corpus"])


@pytest.mark.parametrize("name", NAMES)
def test_every_corpus_config_has_exactly_the_keys_of_the_settings_and_their_defaults(name: str) -> None:
    values = composed(name)
    assert values.keys() == {field.name for field in fields(CorpusSettings)}
    values |= {"path": "prompts.txt", "splits": SplitSettings(**values["splits"])}
    own = {"format", "fields", "files"} | {key for key in values if key.endswith("_column")}
    settings, defaults = CorpusSettings(**values), CorpusSettings(path="prompts.txt")
    for field in fields(CorpusSettings):
        if field.name not in own:
            assert getattr(settings, field.name) == getattr(defaults, field.name), field.name


@pytest.mark.parametrize("name", ["txt", "jsonl", "json", "csv", "parquet"])
def test_the_config_of_a_format_names_it_and_asks_for_a_path(name: str) -> None:
    assert composed(name)["format"] == name
    assert composed(name)["path"] == "???"
    assert composed(name, "corpus.path=data/a.b")["path"] == "data/a.b"


def test_fields_given_as_a_list_become_a_tuple_so_that_settings_can_be_compared() -> None:
    values: Any = ["city", "country"]
    assert CorpusSettings(path="x.csv", fields=values) == CorpusSettings(
        path="x.csv", fields=("city", "country")
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"format": "xml"}, "format is 'xml'; choose auto, txt, jsonl, json, csv, parquet"),
        ({"duplicates": "drop"}, "duplicates is 'drop'; choose keep or first"),
        ({"doubled_bos": "drop"}, "doubled_bos is 'drop'; choose refuse, repair, keep"),
        ({"empty_prompts": "keep"}, "empty_prompts is 'keep'; choose fail or skip"),
        ({"limit": 0}, "limit is 0; give 1 or more, or null"),
        ({"fields": "city"}, "fields is 'city'; give a list of columns"),
        ({"template": "{question"}, "template '{question'"),
        ({"positive_column": "a"}, "a pair has two sides; set positive_column and negative_column"),
        ({"question_column": "q"}, "question_column needs the two answers"),
        ({**PAIR, "messages_column": "m"}, "positive_column and messages_column each make the prompt"),
        ({**PAIR, "label_column": "y"}, "label_column: the sides of a pair are labelled by pair_labels"),
        ({**PAIR, "pair_labels": (1, 1)}, "pair_labels is (1, 1); give two different labels of one type"),
        ({**PAIR, "pair_labels": (True, 0)}, "give two different labels of one type"),
        ({**PAIR, "template": "{a}"}, "template '{a}': write {text} where the side's text goes"),
        ({**PAIR, "balance_letters": True}, "answer_separator and balance_letters are for questions"),
        ({**QUESTION, "template": "{q}"}, "template is for texts and pairs"),
        ({**QUESTION, "fields": ("letter",)}, "'letter' is a field that questions have already"),
        ({**QUESTION, "chat": True, "answer_separator": ""}, "turns of their own"),
        ({"answer_separator": " "}, "are for questions; set question_column"),
        ({"token_ids_column": "t", "chat": True}, "chat makes texts into chats"),
        ({"system": "Be kind."}, "system is a turn of a chat; set chat=true or messages_column"),
    ],
)
def test_a_value_that_can_not_be_used_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError) as raised:
        CorpusSettings(path="x.txt", **values)
    assert message in str(raised.value)


@pytest.mark.parametrize("ratios", [(0.6, 0.2, 0.1), (0.5, 0.5, 0.5), (1.2, -0.2, 0.0), (float("nan"), 0, 1)])
def test_split_ratios_must_be_shares_that_add_up_to_1(ratios: tuple[float, float, float]) -> None:
    with pytest.raises(SettingsError, match="ratio"):
        SplitSettings(*ratios)
