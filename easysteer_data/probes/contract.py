"""What every kind of probe is: examples in, a score of every class in every layer out. Knows none of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from lightning.pytorch.loggers import Logger

from easysteer_data.probes.data import ProbeData
from easysteer_data.probes.layer_result import Task
from easysteer_data.settings import ProbeSettings


@dataclass(frozen=True, slots=True)
class Training:
    """How a probe that takes epochs is trained; one in closed form needs none of it.

    Attributes:
        max_epochs: passes over the train split.
        patience: epochs without a lower validation loss in any layer after which training stops; every layer
            keeps its best epoch. None = all epochs, the last one counts.
        progress: show Lightning's progress bar.
        logger: where losses and figures go; None = nowhere.
    """

    max_epochs: int = 100
    patience: int | None = 10
    progress: bool = False
    logger: Logger | None = None


class Probe(Protocol):
    """A read-out of every layer at once. A new kind is a file in kinds/, a name in `ProbeKind`, a yaml.

    Attributes:
        kind: its name.
        tasks: what labels it can learn.
        pools_prompts: whether a prompt with all its rows is one example.
        layer_ids: decoder blocks, in the order of the axis of layers.
        label_names: the classes; empty for numbers.
    """

    kind: ClassVar[str]
    tasks: ClassVar[tuple[Task, ...]]
    pools_prompts: ClassVar[bool]
    layer_ids: tuple[int, ...]
    label_names: tuple[str, ...]

    @classmethod
    def of_settings(cls, shape: Mapping[str, Any], settings: ProbeSettings) -> Probe:
        """A new one; `shape` holds `layer_ids`, `width` and `label_names`.

        Raises:
            SettingsError: a setting is out of range.
        """

    def fit(self, data: ProbeData, training: Training) -> None:
        """Learn from the train split.

        Raises:
            RunError: the rows have no labels, or not such as the probe needs.
            SettingsError: a setting does not suit the rows.
        """

    def score(self, x: torch.Tensor, example: torch.Tensor | None = None) -> torch.Tensor:
        """Scores float64 [examples, layers, classes], the highest that of the class predicted.

        Of numeric labels, the predicted number, [examples, layers, 1].

        Args:
            x: captured rows, [rows, layers, width] or [rows, width].
            example: int64 [rows], the example that each row is of, where a probe pools prompts; None = all
                rows are of one. Others take every row for an example.
        """

    def chances(self, scores: torch.Tensor) -> torch.Tensor:
        """Chance of each class [..., classes] of scores of classes."""

    @property
    def settings(self) -> dict[str, Any]:
        """Plain values that make the same probe when handed to its class, before it has learned."""

    def tensors(self) -> dict[str, torch.Tensor]:
        """All that it has learned; `mean` [layers, width] is among it."""

    def load_tensors(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take over what another one of the same settings has learned."""
