from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.preprocessing import StandardScaler, normalize

from easysteer_data.datamodule import ActivationDataModule
from easysteer_data.serving.normalise import NORMALISATIONS, Normaliser
from tests.runs import MadeRows, labelled_rows, write_run

METHODS = [method for method in NORMALISATIONS if method != "none"]


@pytest.fixture(scope="module")
def rows() -> MadeRows:
    """Two layers of different size, a constant feature, a far larger one; splits that differ in size."""
    made = labelled_rows((1.0, 3.0))
    scale = np.where(np.repeat(np.array(made.splits) == "train", 1), 1.0, 3.0)[:, None, None]
    return MadeRows(
        (made.x * scale).astype(np.float32), made.n_rows, made.splits, made.labels, made.layer_ids
    )


@pytest.fixture(scope="module")
def run(rows: MadeRows, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("run") / "run", rows)


def by_scikit_learn(method: str, train: Any, x: Any) -> Any:
    """One layer's rows [n, width], normalised by what `train` is like."""
    if method in ("center", "standardise"):
        return StandardScaler(with_std=method == "standardise").fit(train).transform(x)
    if method == "unit_norm":
        return normalize(x)
    return x * np.sqrt(x.shape[1]) / np.linalg.norm(train, axis=1).mean()


@pytest.mark.parametrize("filtered", [False, True], ids=["whole split", "some of its rows"])
@pytest.mark.parametrize("method", METHODS)
def test_every_split_is_normalised_by_the_train_splits_rows_only(
    rows: MadeRows, run: Path, method: Any, filtered: bool
) -> None:
    options: Any = {"rows": {"fields": {"id": [str(i) for i in range(200)]}}} if filtered else {}
    datamodule = ActivationDataModule(run, batch_size=64, normalise=method, dtype="float64", **options)
    x = torch.cat([batch["x"] for batch in datamodule.predict_dataloader()]).numpy()

    chosen = slice(200) if filtered else slice(None)
    given, train = rows.x.astype(np.float64), rows.rows_of("train")
    train = train[train < 200] if filtered else train
    for layer in range(2):
        expected = by_scikit_learn(method, given[train, layer], given[chosen, layer])
        np.testing.assert_allclose(x[:, layer], expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("layers", [None, 3])
@pytest.mark.parametrize("method", NORMALISATIONS)
def test_the_device_gives_what_the_host_gives(run: Path, method: Any, layers: Any) -> None:
    on_host = ActivationDataModule(run, layers, normalise=method)
    on_device = ActivationDataModule(run, layers, normalise=method, cast="device")
    for one, other in zip(on_host.val_dataloader(), on_device.val_dataloader(), strict=True):
        torch.testing.assert_close(on_device.on_after_batch_transfer(other, 0)["x"], one["x"])


def test_half_precision_is_normalised_in_single(tmp_path: Path) -> None:
    x = np.full((3, 1, 4), 200.0, dtype=np.float32)  # squares beyond float16
    rows = MadeRows(x, [1] * 3, ["train", "validation", "test"], ["true"] * 3, (0,))
    run = write_run(tmp_path / "run", rows, dtype="float16")
    (batch,) = ActivationDataModule(run, normalise="unit_norm", dtype="float16").train_dataloader()
    assert batch["x"].dtype == torch.float16
    np.testing.assert_array_equal(batch["x"], np.full((1, 1, 4), 0.5))


def test_a_zero_row_stays_zero_and_a_constant_feature_becomes_zero(rows: MadeRows, run: Path) -> None:
    assert torch.equal(Normaliser("unit_norm")(torch.zeros(1, 3), torch.float32), torch.zeros(1, 3))
    batch = next(iter(ActivationDataModule(run, normalise="standardise").train_dataloader()))
    assert rows.x[rows.rows_of("train")][:, :, 0].std() == 0
    assert batch["x"][:, :, 0].abs().max() == 0
