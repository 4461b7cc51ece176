"""Which group goes to which split. Pure functions of groups, ratios and seed; knows no files.

A group is never cut, so nothing that the prompts of a group have in common leaks into a test.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

from easysteer_data.corpus.settings import SplitSettings
from easysteer_data.errors import CorpusError
from easysteer_data.types import SPLITS, Prompt, Split


def split_groups(sizes: Mapping[str, int], settings: SplitSettings) -> dict[str, Split]:
    """Deal groups out to splits by the order of their hashes.

    The groups stand in line in the order of sha256(seed, group), each as long as it has prompts, and
    the line is cut at the ratios; a group that a cut would hit goes to the side of its middle. The
    shares are thus as near to the ratios as whole groups allow (150 groups of one size at 0.6, 0.2,
    0.2 are exactly 90, 30, 30), and the order of the corpus plays no part. The price, against a fixed
    threshold on each hash: a corpus that grows may move groups near a cut to the next split.

    Args:
        sizes: group -> number of its prompts, each 1 or more.
        settings: ratios and seed.
    """
    total = sum(sizes.values())
    # Divided by their own sum, the last cuts are exactly 1 and rounding leaves no group behind them.
    sums = list(accumulate(settings.ratios))
    cuts = [part / sums[-1] for part in sums]
    splits: dict[str, Split] = {}
    before = 0
    for group in sorted(sizes, key=lambda name: rank(settings.seed, name)):
        splits[group] = SPLITS[bisect_right(cuts, (before + sizes[group] / 2) / total)]
        before += sizes[group]
    return splits


def assign_splits(prompts: Sequence[Prompt], settings: SplitSettings) -> list[Prompt]:
    """Return the prompts with the split of their group; without a group the exact text is one."""
    splits = split_groups(Counter(group_of(prompt) for prompt in prompts), settings)
    return [replace(prompt, split=splits[group_of(prompt)]) for prompt in prompts]


def check_splits(prompts: Sequence[Prompt]) -> None:
    """Refuse splits given by the corpus itself that cut a group.

    Raises:
        CorpusError: two prompts of one group are in different splits; names both lines.
    """
    first: dict[str, Prompt] = {}
    for prompt in prompts:
        earlier = first.setdefault(group_of(prompt), prompt)
        if earlier.split != prompt.split:
            raise CorpusError(
                f"{prompt.source}: the split is {prompt.split!r}, but {earlier.source} of the same group "
                f"({group_of(prompt)[:60]!r}) is in {earlier.split!r}; a group must stay in one split "
                "(without corpus.group_column the exact text is the group)"
            )


def join_groups(prompts: Sequence[Prompt]) -> list[Prompt]:
    """Return the prompts with one group for all groups that share a text, named by the first of them.

    A text that is a side of two pairs would else stand in two splits.
    """
    leader: dict[str, str] = {}

    def find(group: str) -> str:
        while (above := leader.setdefault(group, group)) != group:
            leader[group] = leader[above]  # halves the way for the next search
            group = leader[group]
        return group

    places: dict[str, int] = {}
    first: dict[str, str] = {}
    for prompt in prompts:
        group = group_of(prompt)
        places.setdefault(group, len(places))
        met = (find(group), find(first.setdefault(prompt.text, group)))
        leader[max(met, key=places.__getitem__)] = min(met, key=places.__getitem__)
    return [replace(prompt, group=find(group_of(prompt))) for prompt in prompts]


def group_of(prompt: Prompt) -> str:
    """Return the prompt's group, its exact text where it has none."""
    return prompt.text if prompt.group is None else prompt.group


def rank(seed: int, name: str) -> bytes:
    """Return the place of a group or id in the order that a seed gives: bytes to sort by."""
    # A seed's digits hold no NUL, so no two pairs of seed and name are joined to the same bytes.
    return hashlib.sha256(f"{seed}\0{name}".encode()).digest()
