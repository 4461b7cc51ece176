"""Probes of several runs, each tested on the test split of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from easysteer_data.datamodule import ActivationDataModule
from easysteer_data.errors import RunError, SettingsError
from easysteer_data.probes.contract import Probe
from easysteer_data.probes.data import ProbeData
from easysteer_data.probes.measure import Measurement, scores_of
from easysteer_data.probes.result import Transfer

LabelMatch = Literal["name", "order"]


@dataclass(frozen=True, slots=True)
class TransferSide:
    """One run: its probe, the layer chosen on its validation split, how it is measured on its test split."""

    probe: Probe
    layer: int
    measurement: Measurement

    @property
    def data(self) -> ProbeData:
        """The run's examples."""
        return self.measurement.data


def transfer_matrix(sides: Sequence[TransferSide], match: LabelMatch) -> Transfer:
    """Figures of every run's probe on every run's test split."""
    cells = [[_cell(trained, tested, match) for tested in sides] for trained in sides]
    return Transfer(
        data_sets=tuple(
            str(side.data.datamodule.run.manifest.header.corpus.get("name", "unnamed corpus"))
            for side in sides
        ),
        runs=tuple(str(side.data.datamodule.run.path) for side in sides),
        layers=tuple(side.layer for side in sides),
        metrics={name: tuple(tuple(cell[name] for cell in row) for row in cells) for name in cells[0][0]},
    )


def _cell(trained: TransferSide, tested: TransferSide, match: LabelMatch) -> dict[str, float | None]:
    place = trained.probe.layer_ids.index(trained.layer)
    scores = scores_of(trained.probe, tested.data, "test")[:, place]
    if match == "name" and trained.data.label_names:
        scores = scores[:, [trained.data.label_names.index(name) for name in tested.data.label_names]]
    found = tested.measurement.figures("test", scores, trained.probe.chances)
    return {name: figure.value for name, figure in found.items()}


def other_data(data: ProbeData, runs: Sequence[str], match: LabelMatch) -> list[ProbeData]:
    """The examples of other runs, served as the first one's are.

    Raises:
        RunError: a run is of another model, other layers, another width, or other classes.
        SettingsError: the run is the first one itself.
    """
    found = []
    for folder in runs:
        if Path(folder).resolve() == data.datamodule.run.path.resolve():
            raise SettingsError(f"probe.transfer names {folder}, which is the run itself")
        arguments = {**data.datamodule.hparams, "run": folder}
        other = ProbeData(ActivationDataModule(**arguments), data.pooled, seed=data.seed)
        _check_same(data, other, match)
        other.check()
        found.append(other)
    return found


def _check_same(data: ProbeData, other: ProbeData, match: LabelMatch) -> None:
    run, own = other.datamodule.run, data.datamodule.run
    model, own_model = run.manifest.header.model, own.manifest.header.model
    for name in ("sha256", "name"):
        if model.get(name) != own_model.get(name):
            raise RunError(
                f"{run.path} is of another model than {own.path}: {name} is {model.get(name)!r}, not"
                f" {own_model.get(name)!r}; rows of different models can't share a probe"
            )
    if (other.layer_ids, other.width) != (data.layer_ids, data.width):
        raise RunError(
            f"{run.path} has layers {list(other.layer_ids)} of width {other.width}, {own.path}"
            f" {list(data.layer_ids)} of {data.width}; choose layers that both have with data.layers"
        )
    names, own_names = other.label_names, data.label_names
    if other.task != data.task or len(names) != len(own_names):
        raise RunError(f"{run.path} has {run.manifest.header.label}, {own.path} {own.manifest.header.label}")
    if match == "name" and sorted(names) != sorted(own_names):
        raise RunError(
            f"{run.path} has classes {', '.join(names)}, {own.path} {', '.join(own_names)}; set"
            " probe.transfer_labels=order to match them by their order"
        )
