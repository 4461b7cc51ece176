"""An epoch that was stopped anywhere goes on with the rows that are left, by the Trainer's checkpoints."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from lightning import Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

from easysteer_data.datamodule import ActivationDataModule
from easysteer_data.errors import SettingsError
from tests.recorder import Batch, Recorder, trainer
from tests.runs import MadeRows, random_rows, write_run

ROOT = Path(__file__).parents[1]
N_EPOCHS = 3

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    # Fits go on without the callback that keeps every step.
    pytest.mark.filterwarnings("ignore:.*callbacks used to create the checkpoint"),
]


@pytest.fixture(scope="module")
def rows() -> MadeRows:
    return random_rows()


@pytest.fixture(scope="module")
def run(rows: MadeRows, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("run") / "run", rows)


def pairs(batches: list[Batch]) -> list[tuple[int, int]]:
    return [pair for b in batches for pair in zip(b["prompt"].tolist(), b["position"].tolist(), strict=True)]


def fit(run: Path, checkpoint: Path | None = None, folder: Path | None = None, **options: Any) -> Recorder:
    recorder = Recorder()
    fitting = trainer(N_EPOCHS, folder, num_sanity_val_steps=0)
    fitting.fit(
        recorder, datamodule=ActivationDataModule(run, **options), ckpt_path=checkpoint, weights_only=True
    )
    return recorder


@pytest.fixture(scope="module")
def whole(run: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Recorder, Path]:
    """Three epochs without a stop, and the folder of a checkpoint of every step."""
    folder = tmp_path_factory.mktemp("checkpoints")
    return fit(run, folder=folder, batch_size=16), folder


def steps(recorder: Recorder) -> list[tuple[int, Batch]]:
    return [(epoch, batch) for epoch, batches in recorder.epochs.items() for batch in batches]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_fit_stopped_at_any_step_goes_on_with_exactly_the_steps_that_are_left(
    run: Path, whole: tuple[Recorder, Path], num_workers: int
) -> None:
    recorder, folder = whole
    expected = steps(recorder)
    for step in range(1, len(expected) + 1, 1 if num_workers == 0 else 3):
        resumed = fit(run, folder / f"step-{step}.ckpt", batch_size=16, num_workers=num_workers)
        found = steps(resumed)
        assert [(epoch, pairs([batch])) for epoch, batch in found] == [
            (epoch, pairs([batch])) for epoch, batch in expected[step:]
        ], step


@pytest.mark.parametrize("batch_size", [7, 40, None])
def test_another_batch_size_finishes_the_epoch_and_leaves_later_ones_whole(
    rows: MadeRows, run: Path, whole: tuple[Recorder, Path], batch_size: int | None
) -> None:
    recorder, folder = whole
    train = len(rows.rows_of("train"))
    orders = {epoch: pairs(batches) for epoch, batches in recorder.epochs.items()}
    for step in range(1, len(steps(recorder)) + 1):
        resumed = fit(run, folder / f"step-{step}.ckpt", batch_size=batch_size)
        before = steps(recorder)[:step]
        for epoch, order in orders.items():
            seen = pairs([batch for e, batch in before if e == epoch])
            assert seen + pairs(resumed.epochs.get(epoch, [])) == order, (step, epoch)
            assert len(order) == train
        last = resumed.epochs.get(N_EPOCHS - 1, [])
        if step <= len(steps(recorder)) - len(recorder.epochs[N_EPOCHS - 1]):
            assert len(last) == (1 if batch_size is None else -(-train // batch_size))


def test_every_epoch_after_a_resumed_one_is_validated_once(run: Path, whole: tuple[Recorder, Path]) -> None:
    class Counting(Recorder):
        n_validations = 0

        def on_validation_epoch_end(self) -> None:
            self.n_validations += 1

    counting = Counting()
    trainer(N_EPOCHS, num_sanity_val_steps=0).fit(
        counting,
        datamodule=ActivationDataModule(run, batch_size=7),
        ckpt_path=whole[1] / "step-2.ckpt",
        weights_only=True,
    )
    assert counting.n_validations == N_EPOCHS


@pytest.mark.parametrize("moment", ["validation", "epoch"])
@pytest.mark.parametrize("batch_size", [16, 7])
def test_a_checkpoint_of_an_epochs_end_goes_on_with_the_next_epoch(
    run: Path, whole: tuple[Recorder, Path], tmp_path: Path, moment: str, batch_size: int
) -> None:
    at_end = ModelCheckpoint(tmp_path, save_top_k=-1, save_on_train_epoch_end=moment == "epoch")
    first = trainer(1, callbacks=[at_end], num_sanity_val_steps=0)
    first.fit(Recorder(), datamodule=ActivationDataModule(run, batch_size=16))
    (checkpoint,) = tmp_path.glob("*.ckpt")

    resumed = fit(run, checkpoint, batch_size=batch_size)

    orders = {epoch: pairs(batches) for epoch, batches in whole[0].epochs.items()}
    assert {epoch: pairs(batches) for epoch, batches in resumed.epochs.items()} == {
        epoch: orders[epoch] for epoch in (1, 2)
    }


class SaveOnException(Callback):
    def __init__(self, path: Path) -> None:
        self.path = path

    def on_exception(self, trainer: Trainer, *_: Any) -> None:
        trainer.save_checkpoint(self.path)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_batch_that_was_loaded_but_not_trained_on_is_not_lost(
    run: Path, whole: tuple[Recorder, Path], tmp_path: Path, num_workers: int
) -> None:
    datamodule = ActivationDataModule(run, batch_size=16, num_workers=num_workers)
    failing = trainer(N_EPOCHS, callbacks=[SaveOnException(tmp_path / "stop.ckpt")])
    failed = Recorder(fail_at=2)
    with pytest.raises(RuntimeError, match="in the middle of a step"):
        failing.fit(failed, datamodule=datamodule)

    resumed = fit(run, tmp_path / "stop.ckpt", batch_size=16)
    assert len(steps(failed)) == 2
    assert pairs([b for _, b in steps(failed) + steps(resumed)]) == pairs([b for _, b in steps(whole[0])])


def test_middle_of_an_epoch_of_another_order_is_refused(run: Path, whole: tuple[Recorder, Path]) -> None:
    folder = whole[1]
    with pytest.raises(SettingsError, match=r"within epoch 0.*: seed was 0 and is 1; go on with the same"):
        fit(run, folder / "step-2.ckpt", batch_size=16, seed=1)
    with pytest.raises(SettingsError, match=r"crc32 of the row numbers was .*n_rows was \d+ and is 20"):
        fit(run, folder / "step-2.ckpt", batch_size=16, rows={"limit": 20})


def test_validating_a_checkpoint_leaves_the_next_fit_at_its_start(
    rows: MadeRows, run: Path, whole: tuple[Recorder, Path]
) -> None:
    datamodule = ActivationDataModule(run, batch_size=16)
    recorder, one = Recorder(), trainer(1)
    one.validate(
        recorder,
        datamodule=datamodule,
        ckpt_path=whole[1] / "step-2.ckpt",
        verbose=False,
        weights_only=True,
    )
    one.fit(recorder, datamodule=datamodule)
    assert len(pairs(recorder.epochs[0])) == len(rows.rows_of("train"))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_plain_loop_goes_on_from_a_loaders_state(rows: MadeRows, run: Path, num_workers: int) -> None:
    loader = ActivationDataModule(run, batch_size=16, num_workers=num_workers).train_dataloader()
    loader.sampler.set_epoch(4)
    before = []
    for batch in loader:
        before.append(batch)
        if len(before) == 3:
            break
    state = loader.state_dict()

    datamodule = ActivationDataModule(run, batch_size=5)
    datamodule.load_state_dict(state)
    resumed = datamodule.train_dataloader()
    rest = list(resumed)
    assert sorted(pairs(before + rest)) == sorted(
        zip(*(c[rows.rows_of("train")].tolist() for c in (rows.prompt, rows.position)), strict=True)
    )
    assert len(resumed) == 3 + len(rest)
    assert datamodule.state_dict() == resumed.state_dict()
    assert resumed.state_dict()["n_rows"] == len(rows.rows_of("train"))

    given_to_trainer = ActivationDataModule(run, batch_size=16).train_dataloader()
    given_to_trainer.load_state_dict(state)
    assert pairs(list(given_to_trainer)) == pairs(rest)


PROGRAM = """
import sys, time
from pathlib import Path
from easysteer_data.datamodule import ActivationDataModule
from tests.recorder import Recorder, trainer
from tests.test_datamodule_resume import pairs

run, folder = map(Path, sys.argv[1:3])

class Slow(Recorder):
    def training_step(self, batch):
        time.sleep(0.02)
        if self.trainer.is_global_zero or True:
            with open(folder / f"rows-{self.global_rank}.txt", "a") as file:
                for pair in pairs([batch]):
                    file.write(f"{self.current_epoch} {self.global_step} {pair[0]} {pair[1]}\\n")
        return super().training_step(batch)

if __name__ == "__main__":
    checkpoints = sorted(folder.glob("step-*.ckpt"), key=lambda path: int(path.stem[5:]))
    ranks = int(sys.argv[3])
    options = {"devices": ranks, "strategy": "ddp"} if ranks > 1 else {"devices": 1}
    trainer(2, folder if ranks == 1 else None, num_sanity_val_steps=0, limit_val_batches=0, **options).fit(
        Slow(),
        datamodule=ActivationDataModule(run, batch_size=4, num_workers=2 if ranks == 1 else 1),
        ckpt_path=checkpoints[-1] if checkpoints else None,
        weights_only=True,
    )
"""


@pytest.mark.slow
def test_training_killed_on_one_process_goes_on_with_two(rows: MadeRows, run: Path, tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", str(program), str(run), str(tmp_path)]

    training = subprocess.Popen([*command, "1"], env=environment, start_new_session=True)
    while not (tmp_path / "step-7.ckpt").exists():
        assert training.poll() is None
        time.sleep(0.01)
    os.killpg(training.pid, signal.SIGKILL)
    training.wait()
    trained = [tuple(map(int, line.split())) for line in (tmp_path / "rows-0.txt").read_text().splitlines()]
    for path in tmp_path.glob("rows-*.txt"):
        path.unlink()
    for path in tmp_path.glob("step-*.ckpt"):  # one may be torn by the kill
        if int(path.stem[5:]) > 7:
            path.unlink()

    done = subprocess.run([*command, "2"], env=environment, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    resumed = [
        tuple(map(int, line.split()))
        for rank in range(2)
        for line in (tmp_path / f"rows-{rank}.txt").read_text().splitlines()
    ]
    train = sorted(
        zip(*(c[rows.rows_of("train")].tolist() for c in (rows.prompt, rows.position)), strict=True)
    )
    before = [(epoch, prompt, position) for epoch, step, prompt, position in trained if step < 7]
    after = [(epoch, prompt, position) for epoch, _, prompt, position in resumed]
    assert len(before) == 28
    for epoch in range(2):
        assert sorted(pair for e, *pair in map(list, before + after) if e == epoch) == list(map(list, train))
