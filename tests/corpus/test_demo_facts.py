from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import easysteer_data.corpus
from easysteer_data.corpus import CorpusSettings, read_corpus
from easysteer_data.corpus.demo_facts import false_countries
from easysteer_data.errors import CorpusError
from easysteer_data.types import Prompt

unhurried = settings(deadline=None)

TABLE = Path(easysteer_data.corpus.__file__).with_name("city_facts.csv")
SETTINGS = CorpusSettings(
    path="builtin:city_facts",
    id_column="id",
    label_column="label",
    group_column="city",
    fields=("city", "country"),
)


@pytest.fixture(scope="module")
def facts() -> dict[str, str]:
    with TABLE.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len({row["city"] for row in rows}) == len(rows)
    return {row["city"]: row["country"] for row in rows}


@pytest.fixture(scope="module")
def prompts() -> list[Prompt]:
    return read_corpus(SETTINGS)


def test_the_table_has_150_to_300_cities_of_at_least_30_countries_that_share_several(
    facts: dict[str, str],
) -> None:
    assert 150 <= len(facts) <= 300
    n_cities = Counter(facts.values())
    assert len(n_cities) >= 30
    assert min(n_cities.values()) >= 2
    assert all(name == name.strip() and name.isascii() for name in (*facts, *facts.values()))


def test_each_city_has_one_statement_with_its_country_and_one_with_another(
    prompts: list[Prompt], facts: dict[str, str]
) -> None:
    assert len(prompts) == 2 * len(facts)
    for city, (true, false) in zip(facts, zip(prompts[::2], prompts[1::2], strict=True), strict=True):
        slug = city.lower().replace(" ", "-")
        assert (true.id, true.label, true.group) == (f"{slug}-true", 1, city)
        assert (false.id, false.label, false.group) == (f"{slug}-false", 0, city)
        assert true.text == f"The city of {city} is in {facts[city]}."
        assert false.text == f"The city of {city} is in {false.fields['country']}."
        assert false.fields["country"] != facts[city]
        assert true.split == false.split


def test_each_country_is_stated_as_often_truly_as_falsely_so_that_it_tells_nothing(
    prompts: list[Prompt], facts: dict[str, str]
) -> None:
    stated = {label: Counter(p.fields["country"] for p in prompts if p.label == label) for label in (0, 1)}
    assert stated[0] == stated[1] == Counter(facts.values())


def test_the_false_country_is_not_a_function_of_the_true_one(
    prompts: list[Prompt], facts: dict[str, str]
) -> None:
    wrong: dict[str, set[object]] = {}
    for prompt in prompts[1::2]:
        wrong.setdefault(facts[str(prompt.group)], set()).add(prompt.fields["country"])
    assert np.mean([len(countries) for countries in wrong.values()]) > 3


def test_the_corpus_is_split_by_city_at_the_ratios(prompts: list[Prompt], facts: dict[str, str]) -> None:
    n_cities = Counter(prompt.split for prompt in prompts[::2])
    assert n_cities == {"train": 138, "validation": 46, "test": 46}
    assert sum(n_cities.values()) == len(facts)


def test_a_source_is_the_line_of_the_table(prompts: list[Prompt]) -> None:
    lines = TABLE.read_text(encoding="utf-8").split("\n")
    for prompt in prompts:
        name, _, line = prompt.source.rpartition(":")
        assert name == "builtin:city_facts"
        assert lines[int(line) - 1].split(",")[0] == prompt.group


@unhurried
@given(st.lists(st.sampled_from("abcdef"), min_size=2, max_size=40))
def test_countries_are_dealt_out_anew_and_nobody_keeps_their_own(countries: list[str]) -> None:
    if max(Counter(countries).values()) > len(countries) / 2:
        countries = [*countries, *(f"other {i}" for i in range(len(countries)))]
    dealt = false_countries([f"city {i}" for i in range(len(countries))], countries)
    assert Counter(dealt) == Counter(countries)
    assert all(false != true for false, true in zip(dealt, countries, strict=True))


def test_an_unknown_built_in_corpus_is_refused_naming_those_there_are() -> None:
    with pytest.raises(
        CorpusError, match="'builtin:cities': the built-in corpora are builtin:city_facts, builtin:feelings"
    ):
        read_corpus(CorpusSettings(path="builtin:cities"))
