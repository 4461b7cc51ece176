"""The section that shows a probe at every token of some prompts. Reads their rows and the probe's file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from easysteer_data.errors import RunError, SettingsError
from easysteer_data.report_page.content import Absent, Section
from easysteer_data.shards import Run
from easysteer_data.tokens import load_tokenizer

Json = Mapping[str, Any]

TITLE = "Token by token"
_N_ENDS = 3  # prompts from either end of the scores, where none are named


@dataclass(frozen=True, slots=True)
class TokenScore:
    """A token.

    Attributes:
        text: what it adds to the text of those before it.
        score: the probe's, None where the run has no row of it.
        share: of the page's largest score, 0 to 1.
    """

    text: str
    score: float | None
    share: float


def token_section(
    run: Run, report: Json, probe_file: Path, model: str, prompts: Sequence[int] | None = None
) -> Section | Absent:
    """Score every stored row of some prompts with the best layer's probe.

    Args:
        run: the run that the probe was fitted on.
        report: the contents of report.json.
        probe_file: the probe.
        model: folder or hub name of the model, whose tokenizer tells the tokens' texts.
        prompts: indices of the prompts, None = those of the highest and lowest scores.

    Raises:
        RunError: the probe's file can't be read or is of another fit, or there is no such prompt.
    """
    if (reason := _why_not(run, report, probe_file)) is not None:
        return Absent(TITLE, reason)
    try:
        tokenizer = load_tokenizer(model)
    except SettingsError as error:
        return Absent(TITLE, f"the tokens' texts are not known: {error}")
    chosen = _ends(report) if prompts is None else list(dict.fromkeys(prompts))
    table = run.prompts(["id", "text", "label", "token_ids", "generated_text", "generated_token_ids"])
    if unknown := [index for index in chosen if not 0 <= index < len(table)]:
        raise RunError(f"{run.path}: there is no prompt {unknown[0]}, only 0 to {len(table) - 1}")
    shown = {index: table.slice(index, 1).to_pylist()[0] for index in chosen}
    decode = partial(tokenizer.decode, clean_up_tokenization_spaces=False)
    texts = {index: _token_texts(decode, one) for index, one in shown.items()}
    for index, one in shown.items():
        if one["text"] not in "".join(texts[index]):
            return Absent(TITLE, f"the tokenizer of {model} is not the one that the run was made with")
    scores = _scores(run, report, probe_file, {index: one["label"] for index, one in shown.items()})
    largest = max((abs(score) for found in scores.values() for score in found.values()), default=0.0) or 1.0
    rendered = [
        {"id": one["id"], "label": one["label"], "tokens": _tokens(texts[index], scores[index], largest)}
        for index, one in shown.items()
    ]
    meaning = _meaning(report["label_names"])
    values = {"layer": report["best_layer"], "meaning": meaning, "prompts": rendered, "largest": largest}
    return Section("tokens", TITLE, "tokens.html", values)


def _why_not(run: Run, report: Json, probe_file: Path) -> str | None:
    if not report["label_names"]:
        return "told for probes of classes only"
    if not run.manifest.header.rows or run.n_rows <= run.manifest.header.n_prompts:
        return "the run stores one row a prompt at most; capture with select=all"
    if not probe_file.is_file():
        return f"there is no {probe_file.name}; python -m pipelines.train_probe writes it"
    return None


def _meaning(names: Sequence[str]) -> str:
    return f"log odds of {names[1]!r}" if len(names) == 2 else "log odds of the prompt's own class"


def _ends(report: Json) -> list[int]:
    best = report["best"]
    found = [one["prompt"] for end in ("top", "bottom") for one in best[end][:_N_ENDS]]
    return list(dict.fromkeys(found))


def _token_texts(decode: Callable[[list[int]], str | list[str]], prompt: Json) -> list[str]:
    """What each token adds to the decoding of those before it: a character may take several tokens."""
    token_ids = [*prompt["token_ids"], *prompt["generated_token_ids"]]
    texts: list[str] = []
    known = ""
    for end in range(1, len(token_ids) + 1):
        decoded = str(decode(token_ids[:end]))
        if decoded.endswith("\N{REPLACEMENT CHARACTER}"):
            decoded = known
        texts.append(decoded[len(known) :])
        known = decoded
    return texts


def _scores(
    run: Run, report: Json, probe_file: Path, labels: Mapping[int, str | None]
) -> dict[int, dict[int, float]]:
    """Prompt -> position -> score of its row."""
    from easysteer_data.probes import load_probe  # imports Lightning, which most reports do without

    probe = load_probe(probe_file)
    if report["best_layer"] not in probe.layer_ids:
        raise RunError(
            f"{probe_file}: is not of the fit that the report tells of; run pipelines.train_probe again"
        )
    layer = probe.layer_ids.index(report["best_layer"])
    names: list[str] = list(report["label_names"])
    found: dict[int, dict[int, float]] = {}
    for index, label in labels.items():
        rows = (run.index.prompt == index).nonzero().flatten()
        x = run.gather(report["stream"], probe.layer_ids, rows)
        scores = probe.score(x, torch.arange(len(rows)))[:, layer]  # a token is an example
        own = 1 if len(names) == 2 or label not in names else names.index(label)
        others = torch.cat([scores[:, :own], scores[:, own + 1 :]], dim=1)
        odds = scores[:, own] - others.logsumexp(dim=1)
        found[index] = dict(zip(run.index.position[rows].tolist(), odds.tolist(), strict=True))
    return found


def _tokens(texts: Sequence[str], scores: Mapping[int, float], largest: float) -> list[TokenScore]:
    return [
        TokenScore(text, score := scores.get(position), abs(score or 0.0) / largest)
        for position, text in enumerate(texts)
    ]
