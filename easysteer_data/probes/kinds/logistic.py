"""The logistic probe: every layer's minimum at once, or Adam on minibatches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, get_args

import torch
from lightning.pytorch.utilities.types import OptimizerLRScheduler

from easysteer_data.errors import SettingsError
from easysteer_data.probes.batch import labelled_examples
from easysteer_data.probes.contract import Training
from easysteer_data.probes.data import ProbeData
from easysteer_data.probes.logistic import LayerwiseLogistic
from easysteer_data.probes.readout import Shape
from easysteer_data.probes.standardise import Moments, with_layers
from easysteer_data.probes.trained import TrainedProbe
from easysteer_data.settings import ProbeSettings

Solver = Literal["lbfgs", "adam"]
SOLVERS: tuple[Solver, ...] = get_args(Solver)


class LinearProbe(TrainedProbe):
    """Logistic regression from rows to their labels, for one layer or many at once, in one pass.

    Attributes:
        readout: the parameters, see LayerwiseLogistic.

    Args:
        layer_ids: decoder blocks, in the order of the batches' axis of layers.
        width: elements of a row.
        label_names: the classes, in the order of their index.
        C: inverse strength of the L2 penalty, with scikit-learn's meaning.
        solver: `lbfgs` minimises each layer to convergence; under a Trainer it needs one batch that holds the
            whole train split (`ActivationDataModule(batch_size=None)`). `adam` takes minibatches, in float32,
            with a learning rate that falls to zero over the Trainer's epochs.
        lr: the learning rate that `adam` starts from.

    Raises:
        SettingsError: fewer than two classes, an unknown solver, or C or lr not above zero.
    """

    kind: ClassVar[str] = "logistic"
    readout: LayerwiseLogistic

    def __init__(
        self,
        layer_ids: Sequence[int],
        width: int,
        label_names: Sequence[str],
        C: float = 1.0,  # noqa: N803 - scikit-learn's name
        solver: Solver = "lbfgs",
        lr: float = 0.1,
    ) -> None:
        if solver not in SOLVERS:
            raise SettingsError(f"solver is {solver!r}; choose one of {', '.join(SOLVERS)}")
        if not C > 0:
            raise SettingsError(f"C must be above zero, found {C}")
        layer_ids, label_names = list(layer_ids), list(label_names)
        shape = Shape(len(layer_ids), width, len(label_names))
        readout = LayerwiseLogistic(shape, C, torch.float32 if solver == "adam" else torch.float64)
        super().__init__(readout, layer_ids, label_names, lr)
        self.save_hyperparameters()
        self.automatic_optimization = solver == "adam"

    @classmethod
    def of_settings(cls, shape: Mapping[str, Any], settings: ProbeSettings) -> LinearProbe:
        """See Probe."""
        lr = 0.1 if settings.lr is None else settings.lr
        return cls(**shape, C=settings.C, solver=settings.solver, lr=lr)

    def fit(self, data: ProbeData, training: Training) -> None:
        """See Probe; `lbfgs` needs the train split in memory, however it is batched."""
        if self.automatic_optimization:
            super().fit(data, training)
            return
        parts = [
            labelled_examples(batch, self.readout.mean.shape, self.label_names)
            for batch in data.batches("train")
        ]
        x = torch.cat([x for x, _ in parts]) if len(parts) > 1 else parts[0][0]
        self.readout.standardise(Moments.of_rows(x))
        self._minimise(x, torch.cat([target for _, target in parts]))
        self.eval()

    def on_train_start(self) -> None:
        """Refuse what LBFGS can't do: its steps need the loss of all rows in one place."""
        n_batches, n_ranks = self.trainer.num_training_batches, self.trainer.world_size
        if not self.automatic_optimization and (n_batches, n_ranks) != (1, 1):
            raise SettingsError(
                f"solver 'lbfgs' needs the train split as one batch on one device, found {n_batches} batches"
                f" on {n_ranks}: use batch_size=None and devices=1, or solver='adam'"
            )

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Adam, or none where every layer is minimised in one step."""
        return super().configure_optimizers() if self.automatic_optimization else []

    def training_step(self, batch: Mapping[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
        """The loss of a minibatch for Adam, or every layer minimised; summed over the layers."""
        if self.automatic_optimization:
            return super().training_step(batch, batch_idx)
        x, target = labelled_examples(batch, self.readout.mean.shape, self.label_names)
        loss = self._minimise(x, target).sum()
        self.log("train/loss", loss, prog_bar=True, batch_size=len(target))
        self.trainer.should_stop = True  # nothing is left to do for another epoch
        return loss

    def _minimise(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return self.readout.minimise(with_layers(x), target, self.layer_ids)
