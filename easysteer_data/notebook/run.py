"""A finished run for notebooks: what `shards.Run` reads, as tables and tensors of one layer and split."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from easysteer_data import shards
from easysteer_data.errors import SettingsError
from easysteer_data.notebook.summary import RunSummary
from easysteer_data.types import SPLITS, Split, Stream

if TYPE_CHECKING:
    import pandas as pd

    from easysteer_data.datamodule import ActivationDataModule


def open_run(path: Path | str) -> Run:
    """Open a finished run.

    Checks that each file is there, has its size, and that each index fits its files; hashes of the rows are
    not checked here.

    Raises:
        RunError: there is no run, it is not finished, or another schema version wrote it.
        BadShardError: files are missing or altered; the message lists all of them.
    """
    return shards.open_run_as(Run, path)


class Run(shards.Run):
    """A finished run. Printed, or as a notebook cell's last value, it tells what it holds.

    Attributes:
        path: the run folder.
        manifest: what the run is and which files it has.
        streams: stream -> stored layer ids.
        layers: layer ids of the hidden states.
        n_rows: rows of every layer.
    """

    def __repr__(self) -> str:
        return str(RunSummary.of(self))

    def _repr_html_(self) -> str:
        return RunSummary.of(self).html()

    def rows(self, layer: int, split: Split | None = None, stream: Stream | None = None) -> torch.Tensor:
        """The rows of one layer, [n, width], in the run's order, in the storage dtype.

        Args:
            layer: 0-based decoder block.
            split: rows of these prompts alone; None = all.
            stream: None = the one that `layers` is of.

        Raises:
            RunError: the run has no such stream or layer, or keeps statistics only.
            SettingsError: there is no such split.
        """
        numbers = self._row_numbers(split)
        return self.gather(stream or self._first_stream, [layer], numbers)[:, 0]

    def table(self, split: Split | None = None) -> pd.DataFrame:
        """The prompts, one a line, indexed by prompt: id, text, label, split, group, counts, completion.

        Each field of the corpus is a column of its own; where it has the name of another one, `field.NAME`.

        Raises:
            SettingsError: there is no such split, or pandas is not installed.
        """
        pandas = _pandas()
        table = self.prompts().to_pandas().set_index("index").rename_axis("prompt")
        fields = pandas.DataFrame(map(json.loads, table.pop("fields")), index=table.index)
        clashes = {name: f"field.{name}" for name in fields.columns if name in table.columns}
        table = table.join(fields.rename(columns=clashes))
        return table if split is None else table[table["split"] == _checked(split)]

    def row_table(self, split: Split | None = None) -> pd.DataFrame:
        """What belongs to each row of `rows`, line by line: prompt, position, token_id, label, split.

        Raises:
            RunError: the run keeps statistics only.
            SettingsError: there is no such split, or pandas is not installed.
        """
        pandas = _pandas()
        numbers = self._row_numbers(split).numpy()
        columns = {name: getattr(self.index, name).numpy() for name in ("prompt", "position", "token_id")}
        table = pandas.DataFrame(columns).iloc[numbers]
        prompts = self.prompts(["index", "label", "split"]).to_pandas().set_index("index")
        return table.join(prompts, on="prompt")

    def datamodule(self, **options: Any) -> ActivationDataModule:
        """An ActivationDataModule of this run; the options are its arguments, such as layers, batch_size."""
        from easysteer_data.datamodule import ActivationDataModule

        return ActivationDataModule(self.path, **options)

    @property
    def _first_stream(self) -> Stream:
        return "hidden_states" if "hidden_states" in self.streams else next(iter(self.streams))

    def _row_numbers(self, split: Split | None) -> torch.Tensor:
        if split is None:
            return torch.arange(self.n_rows)
        wanted = SPLITS.index(_checked(split))
        return torch.from_numpy((self.row_splits() == wanted).nonzero()[0])


def _checked(split: Split) -> Split:
    if split not in SPLITS:
        raise SettingsError(f"split is {split!r}; choose one of {', '.join(SPLITS)}, or None for all")
    return split


def _pandas() -> Any:
    try:
        import pandas
    except ImportError as error:
        raise SettingsError(
            "tables need pandas, which is not installed: pip install 'easysteer-data[notebook]'"
        ) from error
    return pandas
