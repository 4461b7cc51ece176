"""What a corpus is made of: counts, duplicates, label conflicts, balance, lengths. Pure; knows no files.

For people before a capture and, as JSON, for the record.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from easysteer_data.corpus.splits import group_of
from easysteer_data.types import SPLITS, Label, Prompt, Split

# Texts that are named one by one; the counts are of all.
_N_SHOWN = 20
_TEXT_SHOWN = 60
_BAR = 40


@dataclass(frozen=True, slots=True)
class RepeatedText:
    """A text that more than one prompt has.

    Attributes:
        text: its first characters.
        n_prompts: prompts that have it.
        places: label -> the source of the first prompt that has it; two labels or more are a conflict.
        splits: the splits that hold it; more than one is a leak from training to test.
    """

    text: str
    n_prompts: int
    places: Mapping[str, str]
    splits: tuple[Split, ...]


@dataclass(frozen=True, slots=True)
class CorpusReport:
    """What a corpus is made of.

    Attributes:
        n_prompts: split -> prompts.
        n_groups: split -> groups.
        labels: label -> split -> prompts; "none" for those without one.
        n_repeated: texts that more than one prompt has.
        n_duplicates: prompts beyond the first of their text.
        n_conflicts: texts with more than one label.
        n_leaks: texts in more than one split.
        repeated: the first repeated texts, conflicts and leaks before others.
        token_lengths: half-open length range [start, stop) in tokens -> prompts; empty before tokenisation.
        n_truncated: prompts that were cut to the window.
        skipped: ids of prompts that did not fit the window and were left out.
    """

    n_prompts: Mapping[Split, int]
    n_groups: Mapping[Split, int]
    labels: Mapping[str, Mapping[Split, int]]
    n_repeated: int
    n_duplicates: int
    n_conflicts: int
    n_leaks: int
    repeated: tuple[RepeatedText, ...]
    token_lengths: Mapping[tuple[int, int], int]
    n_truncated: int
    skipped: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        """Return plain values; length ranges are [start, stop, prompts]."""
        lengths = [[start, stop, n] for (start, stop), n in self.token_lengths.items()]
        return asdict(self) | {"token_lengths": lengths}

    def table(self) -> str:
        """Return the report as lines of text for people."""
        return "\n".join(_lines(self))


def corpus_report(prompts: Sequence[Prompt], *, skipped: Sequence[str] = ()) -> CorpusReport:
    """Describe a corpus, before or after it is tokenised: one pass over it, two where texts are repeated.

    Args:
        prompts: the corpus, with its splits; none is kept.
        skipped: ids that tokenising left out, as the ledger has them.
    """
    tally = _Tally()
    for prompt in prompts:
        tally.add(prompt)
    repeated = list(_repeated_texts(prompts, tally.texts))
    repeated.sort(key=lambda text: (len(text.places) == 1, len(text.splits) == 1))  # else in corpus order
    return CorpusReport(
        n_prompts=_by_split(tally.splits),
        n_groups=_by_split(Counter(tally.groups.values())),
        labels={label: _by_split(tally.labels[label]) for label in sorted(tally.labels)},
        n_repeated=len(repeated),
        n_duplicates=sum(text.n_prompts - 1 for text in repeated),
        n_conflicts=sum(len(text.places) > 1 for text in repeated),
        n_leaks=sum(len(text.splits) > 1 for text in repeated),
        repeated=tuple(repeated[:_N_SHOWN]),
        token_lengths=_length_histogram(tally.lengths),
        n_truncated=tally.n_truncated,
        skipped=tuple(skipped),
    )


class _Tally:
    """What is counted of each prompt; texts and groups are told apart by their marks."""

    def __init__(self) -> None:
        self.splits: Counter[Split] = Counter()
        self.groups: dict[bytes, Split] = {}
        self.labels: dict[str, Counter[Split]] = {}
        self.texts: Counter[bytes] = Counter()
        self.lengths: Counter[int] = Counter()
        self.n_truncated = 0

    def add(self, prompt: Prompt) -> None:
        self.splits[prompt.split] += 1
        self.groups[_mark(group_of(prompt))] = prompt.split
        self.labels.setdefault(_name(prompt.label), Counter())[prompt.split] += 1
        self.texts[_mark(prompt.text)] += 1
        if prompt.token_ids:
            self.lengths[len(prompt.token_ids).bit_length()] += 1
        self.n_truncated += "over_long" in prompt.fields


def _repeated_texts(prompts: Sequence[Prompt], counts: Mapping[bytes, int]) -> Iterator[RepeatedText]:
    if max(counts.values(), default=0) < 2:
        return
    first: dict[bytes, str] = {}
    places: dict[bytes, dict[str, str]] = {}
    held: dict[bytes, set[Split]] = {}
    for prompt in prompts:
        mark = _mark(prompt.text)
        if counts[mark] > 1:
            first.setdefault(mark, prompt.text[:_TEXT_SHOWN])
            places.setdefault(mark, {}).setdefault(_name(prompt.label), prompt.source)
            held.setdefault(mark, set()).add(prompt.split)
    for mark, text in first.items():
        splits = tuple(split for split in SPLITS if split in held[mark])
        yield RepeatedText(text, counts[mark], places[mark], splits)


def _mark(text: str) -> bytes:
    """Sixteen bytes that stand for a text of any length."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _length_histogram(counts: Mapping[int, int]) -> dict[tuple[int, int], int]:
    """Prompts by length range, [1, 2), [2, 4), [4, 8), without gaps; `counts` goes by the length's bits."""
    if not counts:
        return {}
    return {(2 ** (n - 1), 2**n): counts.get(n, 0) for n in range(min(counts), max(counts) + 1)}


def _by_split(counts: Mapping[Split, int]) -> dict[Split, int]:
    return {split: counts.get(split, 0) for split in SPLITS}


def _name(label: Label | None) -> str:
    return "none" if label is None else str(label)


def _lines(report: CorpusReport) -> Iterator[str]:
    rows = [("", *SPLITS, "all")]
    counted = {"prompts": report.n_prompts, "groups": report.n_groups}
    counted |= {f"label {label}": counts for label, counts in list(report.labels.items())[:_N_SHOWN]}
    for name, counts in counted.items():
        rows.append((name, *(str(counts[split]) for split in SPLITS), str(sum(counts.values()))))
    width = max(len(name) for name, *_ in rows)
    for name, *cells in rows:
        yield name.ljust(width) + "".join(cell.rjust(12) for cell in cells)
    if len(report.labels) > _N_SHOWN:
        yield f"and {len(report.labels) - _N_SHOWN} other labels"
    yield (
        f"{report.n_repeated} texts are there more than once ({report.n_duplicates} duplicates), "
        f"{report.n_conflicts} with different labels, {report.n_leaks} in more than one split"
    )
    for text in report.repeated:
        if len(text.places) > 1 or len(text.splits) > 1:
            places = ", ".join(f"{label} at {source}" for label, source in text.places.items())
            yield f"  {text.text!r}: {places}; in {', '.join(text.splits)}"
    most = max(report.token_lengths.values(), default=1)
    for (start, stop), n in report.token_lengths.items():
        yield f"{start} to {stop - 1} tokens".rjust(24) + f"{n:>9} " + "#" * round(_BAR * n / most)
    if report.n_truncated:
        yield f"{report.n_truncated} prompts were cut to the model's window"
    if report.skipped:
        shown = ", ".join(report.skipped[:_N_SHOWN])
        yield f"{len(report.skipped)} prompts did not fit the model's window and were left out: {shown}"
