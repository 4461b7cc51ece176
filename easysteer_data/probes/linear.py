"""The logistic probe as a LightningModule: training, metrics and their names in logs.

Knows batches of labelled rows and the Trainer; where rows lie is the datamodule's business.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal, cast, get_args

import torch
from lightning import LightningModule
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import nn

from easysteer_data.datamodule import ActivationDataModule
from easysteer_data.errors import SettingsError
from easysteer_data.probes.batch import labelled_rows
from easysteer_data.probes.logistic import LayerwiseLogistic, Shape
from easysteer_data.probes.metrics import LayerMetrics, check_classes
from easysteer_data.probes.standardise import Moments
from easysteer_data.types import Split

Solver = Literal["lbfgs", "adam"]
SOLVERS: tuple[Solver, ...] = get_args(Solver)

# Largest element of a layer's gradient: LBFGS stops at the first, above the second it has failed.
_STOP_GRADIENT = 1e-6
_CONVERGED_GRADIENT = 1e-5
_MAX_ITERATIONS = 1000

_LOG_NAMES: Mapping[Split, str] = {"validation": "val", "test": "test"}


def metric_name(split: Split, metric: Literal["accuracy", "auroc"], layer_id: int) -> str:
    """Name under which a figure is logged, e.g. `val/auroc/layer-012`."""
    return f"{_LOG_NAMES[split]}/{metric}/layer-{layer_id:03d}"


class LinearProbe(LightningModule):
    """Logistic regression from rows to their labels, for one layer or many at once, in one pass.

    Rows are standardised by mean and standard deviation of the train split: taken from an
    ActivationDataModule when training starts, or handed to `logistic.standardise` before.

    Attributes:
        logistic: the parameters, see LayerwiseLogistic.

    Args:
        layer_ids: decoder blocks, in the order of the batches' axis of layers.
        width: elements of a row.
        label_names: the classes, in the order of their index.
        C: inverse strength of the L2 penalty, with scikit-learn's meaning.
        solver: `lbfgs` minimises each layer to convergence, in float64, on one batch that holds the
            whole train split (`ActivationDataModule(batch_size=None)`); `adam` takes minibatches, in
            float32, with a learning rate that falls to zero over the Trainer's epochs.
        lr: the learning rate that `adam` starts from.

    Raises:
        SettingsError: fewer than two classes, an unknown solver, or C or lr not above zero.
    """

    def __init__(
        self,
        layer_ids: Sequence[int],
        width: int,
        label_names: Sequence[str],
        C: float = 1.0,  # noqa: N803 - scikit-learn's name
        solver: Solver = "lbfgs",
        lr: float = 0.1,
    ) -> None:
        super().__init__()
        if solver not in SOLVERS:
            raise SettingsError(f"solver is {solver!r}; choose one of {', '.join(SOLVERS)}")
        if len(label_names) < 2:
            raise SettingsError(f"a probe needs at least two classes, found {list(label_names)}")
        if not (C > 0 and lr > 0):
            raise SettingsError(f"C and lr must be above zero, found C={C} and lr={lr}")
        layer_ids, label_names = list(layer_ids), list(label_names)
        self.save_hyperparameters()
        self.layer_ids = tuple(layer_ids)
        self.label_names = tuple(label_names)
        self.lr = lr
        self.automatic_optimization = solver == "adam"
        shape = Shape(len(layer_ids), width, len(label_names))
        self.logistic = LayerwiseLogistic(shape, C, torch.float32 if solver == "adam" else torch.float64)
        self._metrics = nn.ModuleDict(
            {split: LayerMetrics(shape.n_layers, shape.n_classes) for split in _LOG_NAMES}
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits [rows, layers, logits] of captured rows, [rows, layers, width] or [rows, width]."""
        logits: torch.Tensor = self.logistic(x)
        return logits

    def on_fit_start(self) -> None:
        """Take mean and std from the train split, unless they were handed in or restored."""
        if self.logistic.n_train > 0:
            return
        datamodule = getattr(self.trainer, "datamodule", None)
        if not isinstance(datamodule, ActivationDataModule):
            raise SettingsError(
                "the probe knows no mean and std of its rows: train it on an ActivationDataModule, or call"
                " probe.logistic.standardise(Moments.of_batches(...)) with the train split before"
            )
        moments = Moments.of_batches(datamodule.ordered_dataloader("train"))
        self.logistic.standardise(moments.over_all_ranks(self.device))

    def on_train_start(self) -> None:
        """Refuse what LBFGS can't do: its line search needs the loss of all rows in one place."""
        n_batches, n_ranks = self.trainer.num_training_batches, self.trainer.world_size
        if not self.automatic_optimization and (n_batches, n_ranks) != (1, 1):
            raise SettingsError(
                f"solver 'lbfgs' needs the train split as one batch on one device, found {n_batches} batches"
                f" on {n_ranks}: use batch_size=None and devices=1, or solver='adam'"
            )

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """An LBFGS a layer, or one Adam for all whose learning rate falls to zero as a cosine."""
        if self.automatic_optimization:
            adam = torch.optim.Adam(self.logistic.parameters(), self.lr)
            n_steps = int(self.trainer.estimated_stepping_batches)
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, n_steps)
            return {"optimizer": adam, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
        return [
            torch.optim.LBFGS(
                parameters,
                max_iter=_MAX_ITERATIONS,
                history_size=20,
                tolerance_grad=_STOP_GRADIENT,
                tolerance_change=0.0,
                line_search_fn="strong_wolfe",
            )
            for parameters in zip(self.logistic.weights, self.logistic.biases, strict=True)
        ]

    def training_step(self, batch: Mapping[str, torch.Tensor], batch_idx: int) -> torch.Tensor:  # noqa: ARG002
        """The loss of a minibatch for Adam, or every layer minimised by LBFGS; summed over the layers."""
        x, target = self._checked(batch)
        loss = (
            self.logistic.losses(x, target).sum()
            if self.automatic_optimization
            else self._minimise(x, target)
        )
        self.log("train/loss", loss, prog_bar=True, batch_size=len(target))
        return loss

    def validation_step(self, batch: Mapping[str, torch.Tensor], batch_idx: int) -> None:  # noqa: ARG002
        """Measure a batch of the validation split."""
        self._measure("validation", batch)

    def test_step(self, batch: Mapping[str, torch.Tensor], batch_idx: int) -> None:  # noqa: ARG002
        """Measure a batch of the test split."""
        self._measure("test", batch)

    def on_validation_epoch_end(self) -> None:
        """Log every layer's figures on the validation split."""
        self._log_figures("validation")

    def on_test_epoch_end(self) -> None:
        """Log every layer's figures on the test split."""
        self._log_figures("test")

    def _minimise(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Minimise layer after layer, so that only one is held in float64; the loss that is left."""
        optimizers = self.optimizers()
        losses = []
        for layer, optimizer in enumerate(optimizers if isinstance(optimizers, list) else [optimizers]):
            closure = partial(
                self._layer_closure, optimizer, self.logistic.layer_rows(x, layer), layer, target
            )
            optimizer.step(closure=closure)
            losses.append(closure().detach())
            self._check_converged(layer)
        # Nothing is left to do for another epoch.
        self.trainer.should_stop = True
        return torch.stack(losses).sum()

    def _layer_closure(
        self, optimizer: LightningOptimizer, rows: torch.Tensor, layer: int, target: torch.Tensor
    ) -> torch.Tensor:
        optimizer.zero_grad()
        loss = self.logistic.layer_loss(rows, layer, target)
        self.manual_backward(loss)
        return loss

    def _check_converged(self, layer: int) -> None:
        parameters = (self.logistic.weights[layer], self.logistic.biases[layer])
        gradient = max(float(p.grad.abs().max()) for p in parameters if p.grad is not None)
        if not gradient <= _CONVERGED_GRADIENT:
            raise SettingsError(
                f"layer {self.layer_ids[layer]}: no minimum found in {_MAX_ITERATIONS} iterations of LBFGS"
                f" (largest element of the gradient {gradient:.1e}); use a lower C or solver='adam'"
            )

    def _measure(self, split: Split, batch: Mapping[str, torch.Tensor]) -> None:
        x, target = self._checked(batch)
        self._metrics_of(split).update(self(x), target)

    def _log_figures(self, split: Split) -> None:
        metrics = self._metrics_of(split)
        # Lightning's sanity check sees the first batches only, which may lack a class.
        if not self.trainer.sanity_checking:
            check_classes(split, metrics.counts(), self.label_names)
            scores = metrics.scores()
            for layer_id, accuracy, auroc in zip(self.layer_ids, scores.accuracy, scores.auroc, strict=True):
                self.log(metric_name(split, "accuracy", layer_id), accuracy, sync_dist=True)
                self.log(metric_name(split, "auroc", layer_id), auroc, sync_dist=True)
        metrics.reset()

    def _checked(self, batch: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        return labelled_rows(batch, self.logistic.mean.shape, self.label_names)

    def _metrics_of(self, split: Split) -> LayerMetrics:
        return cast("LayerMetrics", self._metrics[split])
