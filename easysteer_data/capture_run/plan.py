"""What is settled about a capture before the engine starts: prompts, tokens, chosen rows, fingerprint.

Knows no engine. The plan of shards needs the streams' widths, which for some only the engine can tell:
`CapturePlan.header` takes them.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from easysteer_data.capture_run.provenance import package_versions, provenance
from easysteer_data.corpus import LabelClasses, PromptStore, corpus_hash, label_classes, read_corpus
from easysteer_data.engine.versions import installed_vllm
from easysteer_data.engine.wire import DTYPES, StreamShape
from easysteer_data.errors import SettingsError
from easysteer_data.ledger import TokenisationLedger
from easysteer_data.model_facts import ModelFacts, read_model_facts
from easysteer_data.row_selection import RowSelection
from easysteer_data.select import SelectSpec, max_rows, warn_clamped
from easysteer_data.settings import ExperimentSettings
from easysteer_data.shards import LabelHeader, RunHeader, StreamHeader, fingerprint_of, plan_shards
from easysteer_data.shards.dtypes import STORAGE_DTYPES
from easysteer_data.tokens import load_tokenizer, tokenize
from easysteer_data.types import Prompt, Stream

LAYER_CONVENTION = (
    "hidden_states: the residual stream after decoder block layer_id (0-based), before the final norm; "
    "Hugging Face's hidden_states[layer_id + 1], except for the last block, which Hugging Face gives normed. "
    "attention_heads: what the attention's output projection of that block takes, query heads side by side. "
    "router_logits: what the router of that block gives, before the softmax"
)
# Arguments of LLM that decide how fast rows come and never what is in them.
_SPEED_OPTIONS = {"kv_cache_memory_bytes", "disable_log_stats", "max_num_partial_prefills", "seed"}
# Rows are in memory as they are collected, wait for the writer, and twice while they are put in order.
_COPIES_IN_MEMORY = 4


@dataclass(frozen=True, slots=True)
class CapturePlan:
    """A capture that is ready to run.

    Attributes:
        settings: the experiment's.
        facts: the model's shape and fingerprint.
        prompts: the corpus, split and tokenised; each prompt is read when it is asked for.
        corpus_sha256: its hash, see `corpus_hash`.
        selects: which rows of each prompt are kept, None = all; made when they are asked for.
        selection: what these came from.
        n_rows: most rows that each prompt can give.
        labels: what the labels are.
        ledger: what tokenising came to.
        max_model_len: tokens that the engine must be able to hold.
    """

    settings: ExperimentSettings
    facts: ModelFacts
    prompts: Sequence[Prompt]
    corpus_sha256: str
    selects: Sequence[SelectSpec | None]
    selection: RowSelection
    n_rows: Sequence[int]
    labels: LabelClasses
    ledger: TokenisationLedger
    max_model_len: int

    @property
    def n_tokens(self) -> int:
        """Tokens that the model reads at most."""
        return self.ledger.n_tokens + len(self.prompts) * (self.settings.capture.max_tokens - 1)

    @property
    def model_dtype(self) -> str:
        """Dtype of the weights and of the rows of all streams but router logits."""
        asked = self.settings.model.dtype
        return self.facts.dtype if asked == "auto" else asked

    @property
    def fingerprint(self) -> str:
        """Equal for two captures whose shards must be equal."""
        return fingerprint_of(self._described())

    def shapes(self) -> dict[Stream, StreamShape] | None:
        """The streams' shapes, None where only the engine can tell them."""
        if set(self.settings.capture.streams) != {"hidden_states"}:
            return None
        layers = self.settings.capture.layers
        layer_ids = tuple(range(self.facts.n_layers)) if layers is None else tuple(sorted(set(layers)))
        return {"hidden_states": StreamShape(layer_ids, self.facts.hidden_size, self.model_dtype)}

    def header(
        self,
        shapes: Mapping[Stream, StreamShape],
        layouts: Mapping[Stream, Mapping[str, int]] | None = None,
    ) -> RunHeader:
        """What the run's folder says.

        Args:
            shapes: stream -> its layers, width and the dtype of its rows.
            layouts: how a row of a stream divides, as {"num_heads": 9, "head_size": 64}.
        """
        described = self._described()
        return RunHeader(
            fingerprint=fingerprint_of(described),
            settings=described["settings"],
            model=described["model"],
            corpus={"name": _corpus_name(self.settings.corpus.path), **described["corpus"]},
            tokenizer=described["tokenizer"],
            versions=package_versions(),
            tokenisation=asdict(self.ledger),
            layer_convention=LAYER_CONVENTION,
            streams={
                stream: StreamHeader(
                    shape.layer_ids, shape.width, self.settings.capture.storage, (layouts or {}).get(stream)
                )
                for stream, shape in shapes.items()
            },
            label=LabelHeader(self.labels.kind, self.labels.names),
            plan=self.plan_shards(shapes),
            rows=self.settings.capture.rows,
            provenance=provenance(self.settings),
        )

    def plan_shards(self, shapes: Mapping[Stream, StreamShape]) -> tuple[tuple[int, int], ...]:
        """Half-open prompt ranges of the shards: files near their target, rows that fit the memory."""
        shards = self.settings.shards
        n_bytes_collected = sum(
            len(shape.layer_ids) * shape.width * DTYPES[shape.dtype].itemsize for shape in shapes.values()
        )
        n_rows_at_most = int(shards.max_buffer_gb * 1e9) // (_COPIES_IN_MEMORY * n_bytes_collected)
        storage = STORAGE_DTYPES[self.settings.capture.storage]
        row_bytes = max(shape.width for shape in shapes.values()) * storage.itemsize
        shard_bytes = max(min(shards.shard_bytes, n_rows_at_most * row_bytes), row_bytes)
        return plan_shards(self.n_rows, row_bytes, shard_bytes=shard_bytes, min_shards=shards.min_shards)

    def _described(self) -> dict[str, dict[str, object]]:
        """What determines the rows or how they lie in files; speed and folders are left out."""
        capture, engine, shards = self.settings.capture, self.settings.engine, self.settings.shards
        return {
            "settings": {
                "capture": {
                    "streams": sorted(capture.streams),
                    "layers": None if capture.layers is None else sorted(set(capture.layers)),
                    "storage": capture.storage,
                    "rows": capture.rows,
                    "max_tokens": capture.max_tokens,
                    "over_long": capture.over_long,
                },
                "select": self.selection.to_json(),
                "engine": {
                    "vllm": " ".join(installed_vllm() or ("none",)),
                    "enforce_eager": engine.enforce_eager,
                    "options": {k: v for k, v in engine.options.items() if k not in _SPEED_OPTIONS},
                },
                "shards": {
                    "shard_bytes": shards.shard_bytes,
                    "min_shards": shards.min_shards,
                    "max_buffer_gb": shards.max_buffer_gb,
                },
            },
            "model": {
                "name": self.facts.name,
                "dtype": self.model_dtype,
                "sha256": dict(self.facts.fingerprint),
            },
            "corpus": {"n_prompts": len(self.prompts), "sha256": self.corpus_sha256},
            "tokenizer": {"class": self.ledger.tokenizer_class, "sha256": self.ledger.tokenizer_sha256},
        }


def plan_capture(settings: ExperimentSettings, prompts: Sequence[Prompt] | None = None) -> CapturePlan:
    """Read and check everything that can be known without an engine.

    Args:
        settings: the experiment's.
        prompts: the corpus where it was read already, None = read it.

    Raises:
        SettingsError: the model folder, a layer or another value can't be used.
        CorpusError: the corpus can't be read, or a prompt does not fit the model's window.
    """
    facts = read_model_facts(settings.model.path)
    selection = RowSelection.from_settings(settings.select)
    _check_streams(settings, facts)
    max_model_len = settings.model.max_model_len or facts.window
    if max_model_len > facts.window:
        raise SettingsError(
            f"model.max_model_len {max_model_len} exceeds the model's window of {facts.window}"
        )
    tokenizer = load_tokenizer(settings.model.path)
    tokenised, ledger = tokenize(
        read_corpus(settings.corpus) if prompts is None else prompts,
        tokenizer,
        max_model_len=max_model_len,
        max_tokens=settings.capture.max_tokens,
        over_long=settings.capture.over_long,
        doubled_bos=settings.corpus.doubled_bos,
    )
    selects = selection.specs(tokenised, tokenizer)
    # The positions of a span are never past a prompt's end.
    warn_clamped([selection.spec] * len(tokenised), [len(prompt.token_ids) for prompt in tokenised])
    return CapturePlan(
        settings=settings,
        facts=facts,
        prompts=PromptStore(tokenised),
        corpus_sha256=corpus_hash(tokenised),
        selects=selects,
        selection=selection,
        n_rows=_n_rows(tokenised, selects, selection, settings.capture.max_tokens),
        labels=label_classes(tokenised),
        ledger=ledger,
        max_model_len=max_model_len,
    )


def _check_streams(settings: ExperimentSettings, facts: ModelFacts) -> None:
    streams, layers = settings.capture.streams, settings.capture.layers
    if not streams or len(set(streams)) != len(streams):
        raise SettingsError(f"capture.streams is {list(streams)}; give one stream or several different ones")
    if layers is None:
        return
    wrong = sorted(layer for layer in layers if not 0 <= layer < facts.n_layers)
    if wrong or not layers:
        raise SettingsError(
            f"capture.layers {wrong or '[]'}: {facts.name} has layers 0 to {facts.n_layers - 1}; "
            "give some of these, or null for all"
        )


def _n_rows(
    prompts: Sequence[Prompt],
    selects: Sequence[SelectSpec | None],
    selection: RowSelection,
    max_tokens: int,
) -> Sequence[int]:
    n_steps = max_tokens - 1
    n_rows = array("q")
    for prompt, select in zip(prompts, selects, strict=True):
        n_rows.append(max_rows(prompt.token_ids, select, n_steps))
    if not any(n_rows):
        raise SettingsError("select matches no token of any prompt")
    return n_rows if selection.reduce is None else array("q", (min(n, 1) for n in n_rows))


def _corpus_name(path: str) -> str:
    """The file's name without folders and suffixes; a title, no part of the fingerprint."""
    return path.removeprefix("builtin:").removeprefix("hf:").rpartition("/")[2].partition(".")[0]
