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
    own = {"format", "id_column", "label_column", "group_column", "fields"}
    settings, defaults = CorpusSettings(**values), CorpusSettings(path="prompts.txt")
    for field in fields(CorpusSettings):
        if field.name not in own:
            assert getattr(settings, field.name) == getattr(defaults, field.name), field.name


@pytest.mark.parametrize("name", ["txt", "jsonl", "json", "csv"])
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
        ({"format": "xml"}, "format is 'xml'; choose auto, txt, jsonl, json, csv"),
        ({"empty_prompts": "keep"}, "empty_prompts is 'keep'; choose fail or skip"),
        ({"limit": 0}, "limit is 0; give 1 or more, or null"),
        ({"fields": "city"}, "fields is 'city'; give a list of columns"),
        ({"template": "{question"}, "template '{question'"),
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
