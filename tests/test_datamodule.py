from __future__ import annotations

import inspect
import itertools
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, get_type_hints

import hydra.utils
import numpy as np
import numpy.typing as npt
import pytest
import torch
from lightning import Trainer
from omegaconf import OmegaConf
from sklearn.utils.class_weight import compute_sample_weight
from torch.utils.data import DataLoader

from easysteer_data.data_options import LoaderOptions, RowFilter
from easysteer_data.datamodule import ActivationDataModule
from easysteer_data.errors import BadShardError, RunError, SettingsError
from easysteer_data.serving import host
from easysteer_data.settings import DataSettings, build
from tests.recorder import Recorder, trainer
from tests.runs import MadeRows, random_rows, write_run


@pytest.fixture(scope="module")
def rows() -> MadeRows:
    return random_rows()


@pytest.fixture(scope="module")
def run(rows: MadeRows, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("run") / "run", rows)


def places(rows: MadeRows, batches: Any) -> list[int]:
    """The row numbers that batches hold, found by (prompt, position)."""
    place = {
        pair: row for row, pair in enumerate(zip(rows.prompt.tolist(), rows.position.tolist(), strict=True))
    }
    return [
        place[pair]
        for batch in batches
        for pair in zip(batch["prompt"].tolist(), batch["position"].tolist(), strict=True)
    ]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_an_epoch_holds_every_row_of_its_split_once(
    rows: MadeRows, run: Path, split: Any, num_workers: int
) -> None:
    datamodule = ActivationDataModule(run, batch_size=7, num_workers=num_workers)
    loader = {
        "train": datamodule.train_dataloader,
        "validation": datamodule.val_dataloader,
        "test": datamodule.test_dataloader,
    }[split]()

    batches = list(loader)

    assert sorted(places(rows, batches)) == rows.rows_of(split).tolist()
    assert len(loader) == len(batches) == -(-len(rows.rows_of(split)) // 7)


def test_predict_serves_all_rows_in_the_order_of_the_run(rows: MadeRows, run: Path) -> None:
    batches = list(ActivationDataModule(run, batch_size=7).predict_dataloader())
    assert places(rows, batches) == list(range(len(rows.x)))


@pytest.mark.parametrize(
    ("layers", "axis"),
    [(None, [0, 1, 2]), (2, 1), ([5, 0], [2, 0]), ([2], [1])],
    ids=["all", "one", "some, in any order", "one as a list"],
)
def test_batches_equal_a_numpy_gather(rows: MadeRows, run: Path, layers: Any, axis: Any) -> None:
    for batch in ActivationDataModule(run, layers=layers, batch_size=7).train_dataloader():
        row = places(rows, [batch])
        np.testing.assert_array_equal(batch["x"].numpy(), rows.x[row][:, axis])
        np.testing.assert_array_equal(batch["y"].numpy(), rows.y[row])
        np.testing.assert_array_equal(batch["token_id"].numpy(), rows.token_id[row])
        assert {name: values.dtype for name, values in batch.items()} == {
            "x": torch.float32,
            "y": torch.int64,
            "prompt": torch.int32,
            "position": torch.int32,
            "token_id": torch.int32,
        }


def test_rows_are_served_in_the_dtype_asked_for(rows: MadeRows, tmp_path: Path) -> None:
    stored = write_run(tmp_path / "half", rows, dtype="float16")
    for dtype in (torch.float32, torch.float16, torch.float64):
        datamodule = ActivationDataModule(stored, batch_size=None, dtype=str(dtype).removeprefix("torch."))
        (batch,) = datamodule.predict_dataloader()
        assert batch["x"].dtype == dtype
        np.testing.assert_array_equal(
            batch["x"].numpy(), rows.x.astype(np.float16).astype(batch["x"].numpy().dtype)
        )


def test_the_order_depends_on_seed_and_epoch_and_not_on_workers(rows: MadeRows, run: Path) -> None:
    def order(seed: int, epoch: int, num_workers: int = 0) -> list[int]:
        loader = ActivationDataModule(
            run, batch_size=7, seed=seed, num_workers=num_workers
        ).train_dataloader()
        loader.sampler.set_epoch(epoch)
        return places(rows, loader)

    assert order(0, 3) == order(0, 3, num_workers=2)
    orders = [order(seed, epoch) for seed, epoch in itertools.product((0, 1), (0, 1))]
    assert len({tuple(rows) for rows in orders}) == 4


def test_a_plain_data_loader_over_the_data_set_serves_whole_batches(rows: MadeRows, run: Path) -> None:
    dataset = ActivationDataModule(run, layers=5).dataset()
    loader = DataLoader(dataset, batch_size=16, collate_fn=lambda batch: batch)
    x = torch.cat([batch["x"] for batch in loader])

    np.testing.assert_array_equal(x.numpy(), rows.x[:, 2])
    np.testing.assert_array_equal(dataset[3]["x"].numpy(), rows.x[3, 2])


# Loader processes read ahead, so that Lightning's first iterator must know the epoch when it is made.
@pytest.mark.filterwarnings("ignore:.*does not have many workers")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_trainer_shuffles_every_epoch_anew_and_a_resumed_one_alike(
    rows: MadeRows, run: Path, tmp_path: Path, num_workers: int
) -> None:
    def fit(recorder: Recorder, max_epochs: int, **options: Any) -> Trainer:
        datamodule = ActivationDataModule(run, batch_size=7, num_workers=num_workers)
        fitting = trainer(max_epochs)
        fitting.fit(recorder, datamodule=datamodule, **options)
        return fitting

    whole, first, resumed = Recorder(), Recorder(), Recorder()
    fit(whole, max_epochs=3)
    fit(first, max_epochs=1).save_checkpoint(tmp_path / "epoch.ckpt")
    fit(resumed, max_epochs=3, ckpt_path=tmp_path / "epoch.ckpt", weights_only=True)

    orders = {epoch: places(rows, batches) for epoch, batches in whole.epochs.items()}
    assert [sorted(order) for order in orders.values()] == [rows.rows_of("train").tolist()] * 3
    assert len({tuple(order) for order in orders.values()}) == 3
    assert orders == {
        epoch: places(rows, batches) for epoch, batches in (first.epochs | resumed.epochs).items()
    }


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
def test_the_trainer_predicts_every_row_in_order(rows: MadeRows, run: Path) -> None:
    batches = trainer(1).predict(Recorder(), datamodule=ActivationDataModule(run, batch_size=7))
    assert torch.cat(batches).tolist() == rows.prompt.tolist()


def test_hyperparameters_are_saved_as_plain_values(run: Path) -> None:
    rows = RowFilter(positions=(0,), fields={"topic": "a"}, limit=5)
    order = {"shuffle": "blocks", "window_rows": 9}
    saved = dict(ActivationDataModule(run, layers=(0, 5), seed=3, rows=rows, order=order).hparams)
    assert saved == {
        "run": str(run),
        "layers": [0, 5],
        "stream": "hidden_states",
        "batch_size": 256,
        "num_workers": 0,
        "seed": 3,
        "dtype": "float32",
        "tail": "spread",
        "labelled_only": False,
        "rows": {"positions": [0], "last": False, "token_ids": None, "fields": {"topic": ["a"]}, "limit": 5},
        "order": {"shuffle": "blocks", "window_rows": 9, "balance": "none"},
        "loading": {
            "persistent": True,
            "start_method": None,
            "prefetch": 2,
            "pinned": None,
            "in_memory": False,
        },
        "normalise": "none",
        "cast": "host",
        "check": "cheap",
    }


def test_dropping_the_tail_concerns_training_only(rows: MadeRows, run: Path) -> None:
    datamodule = ActivationDataModule(run, batch_size=7, tail="drop")
    assert {len(batch["y"]) for batch in datamodule.train_dataloader()} == {7}
    assert sorted(places(rows, datamodule.val_dataloader())) == rows.rows_of("validation").tolist()


def test_a_run_without_labels_has_batches_without_y(rows: MadeRows, tmp_path: Path) -> None:
    unlabelled = replace(rows, labels=[None] * len(rows.labels), label_kind=None)
    batch = next(iter(ActivationDataModule(write_run(tmp_path / "run", unlabelled)).train_dataloader()))
    assert batch.keys() == {"x", "prompt", "position", "token_id"}


@pytest.mark.parametrize("kind", ["classes", "numeric"])
def test_rows_without_a_label_can_be_left_out(rows: MadeRows, tmp_path: Path, kind: Any) -> None:
    labels: list[Any] = [None if i % 3 == 0 else ("true" if kind == "classes" else i / 2) for i in range(50)]
    partly = replace(rows, labels=labels, label_kind=kind)
    run = write_run(tmp_path / "run", partly)

    with_all = list(ActivationDataModule(run).predict_dataloader())
    labelled = list(ActivationDataModule(run, labelled_only=True).predict_dataloader())

    assert places(partly, with_all) == list(range(len(rows.x)))
    assert places(partly, labelled) == [row for row, prompt in enumerate(rows.prompt) if prompt % 3]
    y: npt.NDArray[Any] = torch.cat([batch["y"] for batch in labelled]).numpy()
    expected = [1 if kind == "classes" else prompt / 2 for prompt in rows.prompt if prompt % 3]
    np.testing.assert_array_equal(y, np.array(expected, dtype=y.dtype))


@pytest.mark.parametrize("layers", [1, [0, 1], [7]])
def test_an_unknown_layer_is_refused_by_name(run: Path, layers: Any) -> None:
    with pytest.raises(SettingsError, match=r"layers \d were asked for; .* holds 0, 2, 5 of hidden_states"):
        ActivationDataModule(run, layers=layers).setup()


def test_no_layers_at_all_are_refused(run: Path) -> None:
    with pytest.raises(SettingsError, match="no layer was asked for"):
        ActivationDataModule(run, layers=[]).setup()


def test_an_unknown_dtype_is_refused(run: Path) -> None:
    with pytest.raises(SettingsError, match="dtype is 'int8'; choose one of float16"):
        ActivationDataModule(run, dtype="int8")  # type: ignore[arg-type]


def test_a_split_without_rows_is_refused_with_the_counts_of_all(rows: MadeRows, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", rows.with_splits(["train"] * len(rows.splits)))
    with pytest.raises(
        RunError, match=rf"no rows in split 'validation'; rows: train {len(rows.x)}, validation 0"
    ):
        ActivationDataModule(run).val_dataloader()


def test_a_missing_run_is_refused_when_set_up(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no such folder"):
        ActivationDataModule(tmp_path / "nowhere").setup()


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
@pytest.mark.filterwarnings("ignore:.*suggested max number of worker")  # of this machine
@pytest.mark.parametrize(
    ("start_method", "num_workers", "persistent"),
    [("fork", 4, True), ("fork", 3, False), ("spawn", 1, True), ("forkserver", 1, True)],
)
def test_the_trainer_is_served_the_same_batches_by_loader_processes_however_they_start(
    run: Path, start_method: Any, num_workers: int, persistent: bool
) -> None:
    loading = LoaderOptions(start_method=start_method, persistent=persistent, prefetch=3)
    recorder = Recorder()
    datamodule = ActivationDataModule(run, batch_size=9, num_workers=num_workers, loading=loading)
    trainer(2, limit_val_batches=0).fit(recorder, datamodule=datamodule)
    alone = ActivationDataModule(run, batch_size=9).train_dataloader()
    assert list(recorder.epochs) == [0, 1]
    for epoch, batches in recorder.epochs.items():
        alone.sampler.set_epoch(epoch)
        for batch, expected in zip(batches, alone, strict=True):
            assert all(torch.equal(batch[name], expected[name]) for name in expected)


@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("layers", [5, [5, 0], None])
def test_rows_held_in_memory_are_served_as_those_of_files_that_are_gone(
    rows: MadeRows, tmp_path: Path, layers: Any, dtype: str
) -> None:
    run = write_run(tmp_path / "run", rows, dtype)
    options = {"batch_size": 9, "normalise": "standardise", "rows": {"positions": [0, 2]}}
    mapped = ActivationDataModule(run, layers, **options)
    expected: dict[tuple[str, int], list[Any]] = {}
    held = ActivationDataModule(run, layers, loading={"in_memory": True}, **options)
    for kind in ("train_dataloader", "predict_dataloader"):
        getattr(held, kind)()
        loader = getattr(mapped, kind)()
        for epoch in (0, 1):
            loader.sampler.set_epoch(epoch)
            expected[kind, epoch] = list(loader)
    shutil.rmtree(run / "hidden_states")
    for (kind, epoch), batches in expected.items():
        loader = getattr(held, kind)()  # a loader of later looks into the same memory
        loader.sampler.set_epoch(epoch)
        # What normalises a batch of the first epoch leaves the rows in memory as they are.
        for batch, same in zip(loader, batches, strict=True):
            assert batch.keys() == same.keys()
            assert all(torch.equal(batch[name], same[name]) for name in same)


def test_rows_in_memory_are_not_served_by_loader_processes(run: Path) -> None:
    with pytest.raises(SettingsError, match=r"in_memory .* set num_workers to 0, it is 2"):
        ActivationDataModule(run, num_workers=2, loading={"in_memory": True})


@pytest.mark.parametrize("limited", ["machine", "group", "group above"])
def test_rows_that_do_not_fit_the_memory_are_refused_with_both_sizes(
    rows: MadeRows, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limited: str
) -> None:
    meminfo, own = tmp_path / "meminfo", tmp_path / "cgroup"
    meminfo.write_text(f"MemTotal: 64 kB\nMemAvailable: {1 if limited == 'machine' else 10**9} kB\n")
    own.write_text("0::/job/step\n")
    for folder, name in ((tmp_path / "job/step", "group"), (tmp_path / "job", "group above")):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.max").write_text("3000\n" if limited == name else "max\n")
        (folder / "memory.current").write_text("2500\n")
        (folder / "memory.stat").write_text("anon 5\ninactive_file 500\n")
    monkeypatch.setattr(host, "_MEMINFO", meminfo)
    monkeypatch.setattr(host, "_OWN_GROUP", own)
    monkeypatch.setattr(host, "_GROUPS", tmp_path)
    assert host.available_bytes() == (1024 if limited == "machine" else 1000)
    datamodule = ActivationDataModule(run, loading={"in_memory": True})
    with pytest.raises(
        MemoryError, match=rf"{len(rows.x):,} rows of 3 layers .* 0\.0 GB are available; set loading\.in_mem"
    ):
        datamodule.predict_dataloader()


def test_a_data_module_can_be_instantiated_from_a_hydra_config(rows: MadeRows, run: Path) -> None:
    config = OmegaConf.create(
        {
            "_target_": "easysteer_data.ActivationDataModule",
            "run": str(run),
            "layers": [5, 0],
            "rows": {"positions": [0, 1]},
            "order": {"shuffle": "blocks", "window_rows": 100},
            "loading": {"prefetch": 4},
        }
    )
    datamodule = hydra.utils.instantiate(config)
    batches = list(datamodule.train_dataloader())
    wanted = [row for row in rows.rows_of("train") if rows.position[row] <= 1]
    assert sorted(places(rows, batches)) == wanted
    assert datamodule.hparams["rows"]["positions"] == [0, 1]


def test_every_argument_has_a_type_that_a_command_line_can_parse() -> None:
    hints = get_type_hints(ActivationDataModule.__init__)
    parameters = inspect.signature(ActivationDataModule).parameters
    assert set(parameters) <= set(hints)
    assert [name for name, p in parameters.items() if p.default is inspect.Parameter.empty] == ["run"]


def test_undersampled_training_is_balanced_and_other_loaders_are_as_they_were(tmp_path: Path) -> None:
    made = random_rows()
    uneven = replace(made, labels=["true" if i % 6 == 0 else "false" for i in range(50)])
    run = write_run(tmp_path / "run", uneven)
    datamodule = ActivationDataModule(run, batch_size=None, order={"balance": "undersample"})
    (train,), (validation,) = datamodule.train_dataloader(), datamodule.val_dataloader()
    assert len(set(torch.bincount(train["y"]).tolist())) == 1
    assert places(uneven, [validation]) == uneven.rows_of("validation").tolist()


def test_weights_of_the_train_splits_classes_come_with_its_batches(tmp_path: Path) -> None:
    made = random_rows()
    uneven = replace(made, labels=["true" if i % 6 == 0 else "false" for i in range(50)])
    datamodule = ActivationDataModule(write_run(tmp_path / "run", uneven), order={"balance": "weights"})
    y = uneven.y[uneven.rows_of("train")]
    (train,), (validation,) = datamodule.train_dataloader(), datamodule.val_dataloader()
    expected = compute_sample_weight("balanced", y)
    found = train["weight"].numpy()[np.argsort(places(uneven, [train]))]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert "weight" not in validation


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
def test_rows_are_cast_and_normalised_where_the_trainer_moved_them(rows: MadeRows, run: Path) -> None:
    recorder = Recorder()
    options: Any = {"dtype": "float64", "normalise": "center", "cast": "device"}
    trainer(1).fit(recorder, datamodule=ActivationDataModule(run, batch_size=16, **options))
    x = torch.cat([batch["x"] for batch in recorder.epochs[0]])
    assert x.dtype == torch.float64
    order = places(rows, recorder.epochs[0])
    train = rows.x[rows.rows_of("train")].astype(np.float64)
    np.testing.assert_allclose(x, rows.x[order] - train.mean(axis=0), atol=1e-9)


def test_the_quality_of_an_order_is_measured_on_the_train_split(run: Path) -> None:
    mixed = ActivationDataModule(run, batch_size=7).shuffle_quality()
    stored = ActivationDataModule(run, batch_size=7, order={"shuffle": "none"}).shuffle_quality()
    assert mixed.n_blocks == stored.n_blocks
    assert stored.mixing <= mixed.mixing
    with pytest.raises(SettingsError, match="set batch_size"):
        ActivationDataModule(run, batch_size=None).shuffle_quality()


def test_bad_files_are_all_listed_before_training(rows: MadeRows, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", rows)
    missing = run / "hidden_states/layer-002/shard-000000.tar"
    missing.unlink()
    short = run / "hidden_states/layer-005/shard-000002.tar"
    short.write_bytes(short.read_bytes()[:-1])
    with pytest.raises(
        BadShardError, match=r"(?s)2 bad files.*layer-002/shard-000000.*layer-005/shard-000002"
    ):
        trainer(1).fit(Recorder(), datamodule=ActivationDataModule(run))


def test_altered_bytes_are_found_on_request(rows: MadeRows, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", rows)
    ActivationDataModule(run, check="full").prepare_data()
    altered = [run / f"hidden_states/layer-{layer:03d}/shard-000001.tar" for layer in (0, 5)]
    for path in altered:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)

    ActivationDataModule(run).prepare_data()
    with pytest.raises(
        BadShardError, match=r"(?s)2 bad files.*layer-000/shard-000001.*layer-005/shard-000001"
    ):
        ActivationDataModule(run, check="full").prepare_data()


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ({"cast": "gpu"}, "cast is 'gpu'; choose one of host, device"),
        ({"check": "none"}, "check is 'none'; choose one of cheap, full"),
        ({"normalise": "zscore"}, "normalise is 'zscore'; choose one of none, center"),
    ],
)
def test_an_unknown_choice_is_refused(run: Path, argument: Any, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        ActivationDataModule(run, **argument)


def test_the_settings_of_an_experiment_are_the_arguments_of_the_data_module(
    rows: MadeRows, run: Path
) -> None:
    settings = build(
        DataSettings, {"batch_size": 7, "rows": {"positions": [0]}, "order": {"shuffle": "none"}}
    )
    arguments = settings.arguments()
    assert set(inspect.signature(ActivationDataModule).parameters) == {"run", "cast", *arguments}
    batches = list(ActivationDataModule(run, **arguments).train_dataloader())
    assert places(rows, batches) == [row for row in rows.rows_of("train") if rows.position[row] == 0]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rows": {"limit": 0}}, r"rows: rows\.limit is 0; use at least 1"),
        ({"rows": {"positon": [1]}}, r"'rows\.positon'; did you mean 'rows\.positions'"),
        ({"order": {"shuffle": "all"}}, r"order\.shuffle: .*'rows', 'blocks' or 'none'"),
        ({"normalise": "zscore"}, "normalise: .*'none', 'center'"),
    ],
)
def test_unusable_settings_are_refused_by_key(values: Any, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        build(DataSettings, values)
