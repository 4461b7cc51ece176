"""Probes that a Trainer fits epoch by epoch, as LightningModules: training, metrics, their names in logs.

Knows batches of labelled examples and the Trainer; where rows lie is the datamodule's business.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, cast

import torch
from lightning import LightningModule
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import nn

from easysteer_data.datamodule import ActivationDataModule
from easysteer_data.errors import SettingsError
from easysteer_data.probes.batch import labelled_examples
from easysteer_data.probes.contract import Training
from easysteer_data.probes.data import ProbeData
from easysteer_data.probes.epochs import train_epochs
from easysteer_data.probes.layer_result import Task
from easysteer_data.probes.metrics import LayerErrors, LayerMetrics, check_classes
from easysteer_data.probes.readout import LayerwiseReadout, with_reference
from easysteer_data.probes.standardise import Moments
from easysteer_data.types import Split

_LOG_NAMES: Mapping[Split, str] = {"validation": "val", "test": "test"}


def metric_name(split: Split, metric: Literal["accuracy", "auroc", "loss"], layer_id: int) -> str:
    """Name under which a figure is logged, e.g. `val/auroc/layer-012`."""
    return f"{_LOG_NAMES[split]}/{metric}/layer-{layer_id:03d}"


class TrainedProbe(LightningModule):
    """A read-out of every layer, trained by Adam with a learning rate that falls to zero as a cosine.

    Rows are standardised by mean and standard deviation of the train split: taken from an
    ActivationDataModule when training starts, or handed to `readout.standardise` before.

    Attributes:
        readout: the parameters.
        layer_ids: decoder blocks, in the order of the batches' axis of layers.
        label_names: the classes; empty for numbers.
        validation_errors: mean error of each layer in the last validation, float64 [layers].

    Args:
        readout: the parameters.
        layer_ids: decoder blocks.
        label_names: the classes, in the order of their index.
        lr: the learning rate to start from.

    Raises:
        SettingsError: there is one class, or lr is not above zero.
    """

    kind: ClassVar[str]
    tasks: ClassVar[tuple[Task, ...]] = ("classes",)
    pools_prompts: ClassVar[bool] = False

    def __init__(
        self, readout: LayerwiseReadout, layer_ids: Sequence[int], label_names: Sequence[str], lr: float
    ) -> None:
        super().__init__()
        if len(label_names) == 1 or (not label_names and "numeric" not in self.tasks):
            raise SettingsError(f"a probe needs at least two classes, found {list(label_names)}")
        if not lr > 0:
            raise SettingsError(f"lr must be above zero, found {lr}")
        self.layer_ids = tuple(layer_ids)
        self.label_names = tuple(label_names)
        self.lr = lr
        self.readout = readout
        self.validation_errors = torch.empty(0)
        shape = readout.shape
        self._errors = LayerErrors(shape.n_layers)
        self._metrics = nn.ModuleDict(
            {split: LayerMetrics(shape.n_layers, shape.n_classes) for split in _LOG_NAMES}
            if shape.n_classes
            else {}
        )

    def forward(self, x: torch.Tensor, example: torch.Tensor | None = None) -> torch.Tensor:
        """Logits [examples, layers, logits] of captured rows, [rows, layers, width] or [rows, width]."""
        logits: torch.Tensor = self.readout(x, example)
        return logits

    def fit(self, data: ProbeData, training: Training) -> None:
        """See Probe."""
        self.readout.standardise(Moments.of_batches(data.batches("train")))
        self.readout.n_train.fill_(data.counts("train").examples)
        if data.task == "numeric":
            self.readout.standardise_targets(data.targets("train"))
        train_epochs(self, data, training)

    @torch.no_grad()
    def score(self, x: torch.Tensor, example: torch.Tensor | None = None) -> torch.Tensor:
        """See Probe."""
        x = x.to(self.readout.mean.device)
        if not self.label_names:
            return self.readout.numbers(x, example).double().cpu()
        return with_reference(self.readout(x, example)).double().cpu()

    def chances(self, scores: torch.Tensor) -> torch.Tensor:
        """See Probe."""
        return scores.softmax(dim=-1)

    @property
    def settings(self) -> dict[str, Any]:
        """See Probe."""
        return dict(self.hparams)

    def tensors(self) -> dict[str, torch.Tensor]:
        """See Probe."""
        return dict(self.readout.state_dict())

    def load_tensors(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """See Probe."""
        self.readout.load_state_dict(dict(tensors))
        self.eval()

    def on_fit_start(self) -> None:
        """Take mean and std from the train split, unless they were handed in or restored."""
        if self.readout.n_train > 0:
            return
        datamodule = getattr(self.trainer, "datamodule", None)
        if not isinstance(datamodule, ActivationDataModule):
            raise SettingsError(
                "the probe knows no mean and std of its rows: train it on an ActivationDataModule, or call"
                " probe.readout.standardise(Moments.of_batches(...)) with the train split before"
            )
        moments = Moments.of_batches(datamodule.ordered_dataloader("train"))
        self.readout.standardise(moments.over_all_ranks(self.device))

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """One Adam for all layers, which moves each as if it were alone."""
        adam = torch.optim.Adam(self.readout.parameters(), self.lr)
        n_steps = int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, n_steps)
        return {"optimizer": adam, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def training_step(self, batch: Mapping[str, torch.Tensor], batch_idx: int) -> torch.Tensor:  # noqa: ARG002
        """The loss of a minibatch, summed over the layers."""
        x, target, example = self._checked(batch)
        loss = self.readout.losses(x, target, example).sum()
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
        self.validation_errors = self._errors.compute().view(-1)  # torchmetrics drops an axis of one layer
        self._log_figures("validation")

    def on_test_epoch_end(self) -> None:
        """Log every layer's figures on the test split."""
        self._log_figures("test")

    def _measure(self, split: Split, batch: Mapping[str, torch.Tensor]) -> None:
        x, target, example = self._checked(batch)
        self._errors.update(self.readout.errors(x, target, example), len(target))
        if split in self._metrics:
            cast("LayerMetrics", self._metrics[split]).update(self(x, example), target)

    def _log_figures(self, split: Split) -> None:
        # Lightning's sanity check sees the first batches only, which may lack a class.
        if not self.trainer.sanity_checking:
            for layer_id, error in zip(self.layer_ids, self._errors.compute().view(-1), strict=True):
                self.log(metric_name(split, "loss", layer_id), error.float(), sync_dist=True)
            if split in self._metrics:
                self._log_class_figures(split, cast("LayerMetrics", self._metrics[split]))
        self._errors.reset()
        if split in self._metrics:
            cast("LayerMetrics", self._metrics[split]).reset()

    def _log_class_figures(self, split: Split, metrics: LayerMetrics) -> None:
        check_classes(split, metrics.counts(), self.label_names)
        scores = metrics.scores()
        for layer_id, accuracy, auroc in zip(self.layer_ids, scores.accuracy, scores.auroc, strict=True):
            self.log(metric_name(split, "accuracy", layer_id), accuracy, sync_dist=True)
            self.log(metric_name(split, "auroc", layer_id), auroc, sync_dist=True)

    def _checked(
        self, batch: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        x, target = labelled_examples(batch, self.readout.mean.shape, self.label_names)
        return x, target, batch.get("example")
