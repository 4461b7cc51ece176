"""What training a probe found: figures per layer, controls, the layer chosen. Plain numbers, no tensor.

`ProbeReport.to_json` is the schema of report.json; knows neither files nor plots.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from easysteer_data.probes.details import BestLayer
from easysteer_data.probes.layer_result import SELECTED_BY, Figures, LayerResult, Task, figures_json
from easysteer_data.types import Split

SCHEMA_VERSION = 2


@dataclass(frozen=True, slots=True)
class SplitCounts:
    """What a split held; examples are rows, or prompts where the probe pools them."""

    rows: int
    prompts: int
    groups: int
    examples: int


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where the rows came from.

    Attributes:
        run: the run folder.
        run_fingerprint: of the run.
        data_set: name of the corpus, for titles.
        model: name of the model, for titles.
        stream: stream of the rows.
        layer_convention: what a row of layer l is, in words.
        gates: fault -> rows and layers that the capture counted with it; empty where it stopped at the first.
    """

    run: str
    run_fingerprint: str
    data_set: str
    model: str
    stream: str
    layer_convention: str
    gates: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class PositionResult:
    """A probe's figures on the rows of one position; `position` is as in RowFilter."""

    position: int
    layers: tuple[LayerResult, ...]
    best_layer: int

    def to_json(self) -> dict[str, Any]:
        """Its part of report.json."""
        layers = [layer.to_json() for layer in self.layers]
        return {"position": self.position, "best_layer": self.best_layer, "layers": layers}


@dataclass(frozen=True, slots=True)
class Transfer:
    """Probes of several runs, each tested on the test split of each.

    Attributes:
        data_sets: the runs' corpora, the report's own first.
        runs: their folders.
        layers: the layer of each run's probe, chosen on its own validation split.
        metrics: name -> matrix; row = where the probe was trained, column = where it was tested.
    """

    data_sets: tuple[str, ...]
    runs: tuple[str, ...]
    layers: tuple[int, ...]
    metrics: Mapping[str, tuple[tuple[float | None, ...], ...]]


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """Figures of a probe on every layer of a run.

    Attributes:
        kind: kind of probe.
        settings: how it was fitted and measured.
        task: whether it tells classes apart or predicts a number.
        label_names: the classes, in the order of their index; empty for numbers.
        layers: one result a layer, ascending.
        counts: what each split held.
        provenance: where the rows came from.
        best_layer: decoder block chosen on validation, the lowest of equals; the test split has no say.
        details: curves and prompts of that layer's probe on the test split.
        baselines: name -> figures on the test split of what does without activations: `majority` (the train
            split's most frequent class; its mean number), `bag_of_tokens` (a logistic or ridge regression on
            the prompts' token counts; absent where the run has no token ids).
        positions: figures of each position, where they were asked for; the report is of the best of them.
        position: that position.
        transfer: figures across runs, where they were asked for.
    """

    kind: str
    settings: Mapping[str, object]
    task: Task
    label_names: tuple[str, ...]
    layers: tuple[LayerResult, ...]
    counts: Mapping[Split, SplitCounts]
    provenance: Provenance
    best_layer: int
    details: BestLayer
    baselines: Mapping[str, Figures] = field(default_factory=dict)
    positions: tuple[PositionResult, ...] = ()
    position: int | None = None
    transfer: Transfer | None = None

    @property
    def best(self) -> LayerResult:
        """The result of the best layer."""
        return next(result for result in self.layers if result.layer == self.best_layer)

    @property
    def selected_by(self) -> str:
        """The figure on validation by which the layer is chosen."""
        return SELECTED_BY[self.task]

    @property
    def test_auroc(self) -> float | None:
        """Test AUROC of the best layer; None for numeric labels."""
        return self.best.test_auroc

    @property
    def test_accuracy(self) -> float | None:
        """Test accuracy of the best layer; None for numeric labels."""
        return self.best.test_accuracy

    @property
    def n_train(self) -> int:
        """Examples of the train split."""
        return self.counts["train"].examples

    @property
    def n_validation(self) -> int:
        """Examples of the validation split."""
        return self.counts["validation"].examples

    @property
    def n_test(self) -> int:
        """Examples of the test split."""
        return self.counts["test"].examples

    def to_json(self) -> dict[str, Any]:
        """The contents of report.json, plain values only: README.md of this room tells them one by one."""
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": self.kind,
            "settings": dict(self.settings),
            "task": self.task,
            "label_names": list(self.label_names),
            "selected_by": self.selected_by,
            "best_layer": self.best_layer,
            "test_auroc": self.test_auroc,
            "test_accuracy": self.test_accuracy,
            "n_train": self.n_train,
            "n_validation": self.n_validation,
            "n_test": self.n_test,
            "counts": {split: asdict(counts) for split, counts in self.counts.items()},
            "layers": [layer.to_json() for layer in self.layers],
            "baselines": {name: figures_json(figures) for name, figures in self.baselines.items()},
            "best": self.details.to_json(),
            "position": self.position,
            "positions": [position.to_json() for position in self.positions],
            "transfer": None if self.transfer is None else _transfer_json(self.transfer),
            **asdict(self.provenance),
        }


def _transfer_json(transfer: Transfer) -> dict[str, Any]:
    metrics = {name: [list(row) for row in rows] for name, rows in transfer.metrics.items()}
    return {
        "data_sets": list(transfer.data_sets),
        "runs": list(transfer.runs),
        "layers": list(transfer.layers),
        "metrics": metrics,
    }
