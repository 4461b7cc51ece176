from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from easysteer_data.corpus import CorpusSettings, SplitSettings, assign_splits, read_corpus
from easysteer_data.corpus.splits import check_splits, join_groups, split_groups
from easysteer_data.errors import CorpusError, SettingsError
from easysteer_data.serving.order import EpochOrder
from easysteer_data.types import SPLITS, Prompt, Split

unhurried = settings(deadline=None)

corpora = st.lists(st.tuples(st.text(max_size=3), st.text(max_size=3)), min_size=1, max_size=60)


@st.composite
def split_settings(draw: st.DrawFn) -> SplitSettings:
    percents = sorted((draw(st.integers(0, 100)), draw(st.integers(0, 100))))
    train, validation, test = percents[0], percents[1] - percents[0], 100 - percents[1]
    return SplitSettings(train / 100, validation / 100, test / 100, seed=draw(st.integers(-5, 5)))


def prompts_of(rows: list[tuple[str, str]]) -> list[Prompt]:
    return [
        Prompt(index=i, id=str(i), text=text, source=f"rows:{i + 1}", group=group)
        for i, (group, text) in enumerate(rows)
    ]


@unhurried
@given(corpora, split_settings())
def test_no_group_is_in_two_splits(rows: list[tuple[str, str]], settings: SplitSettings) -> None:
    splits: dict[str, set[Split]] = {}
    for prompt in assign_splits(prompts_of(rows), settings):
        assert prompt.group is not None
        splits.setdefault(prompt.group, set()).add(prompt.split)
    assert all(len(of_group) == 1 for of_group in splits.values())


def test_a_test_file_is_the_test_split_and_the_rest_is_shared_out(tmp_path: Path) -> None:
    for name, first, n_rows in (("own", 0, 40), ("held_out", 40, 7)):
        (tmp_path / f"{name}.txt").write_text("".join(f"row {first + i}\n" for i in range(n_rows)))
    settings = CorpusSettings(path=str(tmp_path / "own.txt"), test_path=str(tmp_path / "held_out.txt"))
    prompts = read_corpus(settings)
    assert [prompt.id for prompt in prompts] == [str(i) for i in range(47)]
    assert [prompt.text for prompt in prompts if prompt.split == "test"] == [
        f"row {i}" for i in range(40, 47)
    ]
    assert Counter(prompt.split for prompt in prompts) == {"train": 30, "validation": 10, "test": 7}
    few = read_corpus(replace(settings, limit=4))
    assert Counter(prompt.split for prompt in few) == {"train": 3, "validation": 1, "test": 4}


def test_a_group_that_is_in_the_test_file_and_outside_it_is_refused(tmp_path: Path) -> None:
    for name in ("own", "held_out"):
        (tmp_path / f"{name}.txt").write_text(f"only in {name}\nin both\n")
    settings = CorpusSettings(path=str(tmp_path / "own.txt"), test_path=str(tmp_path / "held_out.txt"))
    with pytest.raises(
        CorpusError, match=r"held_out\.txt:2: the split is 'test', but .*own\.txt:2 of the same"
    ):
        read_corpus(settings)
    with pytest.raises(SettingsError, match="test_path can't be used together with split_column"):
        replace(settings, split_column="part")
    with pytest.raises(SettingsError, match=r"splits\.train or splits\.validation must be above 0"):
        read_corpus(replace(settings, splits=SplitSettings(0, 0, 1)))


@unhurried
@given(st.dictionaries(st.text(max_size=4), st.integers(1, 9), min_size=1), split_settings())
def test_shares_of_prompts_are_within_the_largest_group_of_the_ratios(
    sizes: dict[str, int], settings: SplitSettings
) -> None:
    splits = split_groups(sizes, settings)
    for split, ratio in zip(SPLITS, settings.ratios, strict=True):
        n_prompts = sum(size for group, size in sizes.items() if splits[group] == split)
        assert abs(n_prompts - ratio * sum(sizes.values())) <= max(sizes.values()) + 1e-9
        assert ratio > 0 or n_prompts == 0


@unhurried
@given(corpora, split_settings(), st.randoms())
def test_the_order_of_the_corpus_plays_no_part(
    rows: list[tuple[str, str]], settings: SplitSettings, random: Random
) -> None:
    prompts = prompts_of(rows)
    shuffled = random.sample(prompts, len(prompts))
    expected = {prompt.index: prompt.split for prompt in assign_splits(prompts, settings)}
    assert {prompt.index: prompt.split for prompt in assign_splits(shuffled, settings)} == expected


@pytest.mark.parametrize("n_prompts_a_group", [1, 2, 5])
def test_150_groups_of_one_size_at_60_20_20_are_90_30_and_30(n_prompts_a_group: int) -> None:
    sizes = {f"city {i}": n_prompts_a_group for i in range(150)}
    splits = split_groups(sizes, SplitSettings(0.6, 0.2, 0.2))
    assert Counter(splits.values()) == {"train": 90, "validation": 30, "test": 30}


def test_groups_stand_in_the_order_of_the_sha256_of_seed_and_name() -> None:
    names = [f"group {i}" for i in range(20)]
    order = sorted(names, key=lambda name: hashlib.sha256(b"7\x00" + name.encode()).hexdigest())
    splits = split_groups(dict.fromkeys(names, 1), SplitSettings(0.5, 0.25, 0.25, seed=7))
    assert [splits[name] for name in order] == ["train"] * 10 + ["validation"] * 5 + ["test"] * 5


def test_another_seed_deals_the_groups_out_anew() -> None:
    sizes = dict.fromkeys(map(str, range(100)), 1)
    assert split_groups(sizes, SplitSettings(seed=0)) != split_groups(sizes, SplitSettings(seed=1))


def test_the_same_text_with_both_labels_and_an_entity_in_true_and_false_statements_stay_in_one_split(
    tmp_path: Path,
) -> None:
    rows = [f"The city of {i} is {i % 3}.,{label},city {i}" for i in range(60) for label in (1, 0)]
    rows += [f"The city of {i} is elsewhere.,0,city {i}" for i in range(60)]
    (tmp_path / "a.csv").write_text("\n".join(["text,label,city", *rows]))
    for group in (None, "city"):
        settings = CorpusSettings(path=f"{tmp_path}/a.csv", label_column="label", group_column=group)
        prompts = read_corpus(settings)
        key = "text" if group is None else "group"
        splits = {(getattr(prompt, key), prompt.split) for prompt in prompts}
        assert len(splits) == len({getattr(prompt, key) for prompt in prompts})
        assert {prompt.split for prompt in prompts} == set(SPLITS)


def test_a_corpus_sorted_by_label_has_both_labels_in_each_split_and_in_each_batch(tmp_path: Path) -> None:
    rows = [f"text {i},{int(i >= 500)}" for i in range(1000)]
    (tmp_path / "a.csv").write_text("\n".join(["text,label", *rows]))
    prompts = read_corpus(CorpusSettings(path=f"{tmp_path}/a.csv", label_column="label"))
    for split in SPLITS:
        labels = np.array([prompt.label for prompt in prompts if prompt.split == split])
        assert labels.mean() == pytest.approx(0.5, abs=0.15)
        mixed = labels[EpochOrder(len(labels), seed=0)(0)]
        assert all(0 < mixed[start : start + 32].mean() < 1 for start in range(0, len(mixed) - 31, 32))


def test_without_a_group_the_same_text_stays_in_one_split() -> None:
    prompts = [
        replace(prompt, group=None) for prompt in prompts_of([("", f"text {i % 40}") for i in range(80)])
    ]
    split_of = {prompt.text: prompt.split for prompt in assign_splits(prompts[:40], SplitSettings())}
    assert all(prompt.split == split_of[prompt.text] for prompt in assign_splits(prompts, SplitSettings()))


@unhurried
@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 9).map(str)), min_size=1, max_size=20))
def test_groups_that_share_a_text_are_joined_and_no_others(rows: list[tuple[str, str]]) -> None:
    # The closure by repeated merging of sets, in place of a search for the leader.
    sets = [{group, f"text {text}"} for group, text in rows]
    for _ in rows:
        sets = [set().union(*(other for other in sets if other & one)) for one in sets]
    for (group, _), joined, prompt in zip(rows, sets, join_groups(prompts_of(rows)), strict=True):
        assert prompt.group == next(name for name, _ in rows if name in joined)
        assert group in joined


def test_splits_given_by_the_corpus_must_not_cut_a_group() -> None:
    prompts = prompts_of([("Paris", "a"), ("Oslo", "b"), ("Paris", "c")])
    check_splits(prompts)
    with pytest.raises(CorpusError) as raised:
        check_splits([*prompts[:2], replace(prompts[2], split="test")])
    assert str(raised.value).startswith(
        "rows:3: the split is 'test', but rows:1 of the same group ('Paris') is in 'train'"
    )
