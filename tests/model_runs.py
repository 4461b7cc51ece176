"""Runs that hold a tiny model's rows as Hugging Face computes them, written through RunWriter."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from easysteer_data.shards import LabelHeader, RunHeader, RunWriter, StreamHeader, plan_shards
from easysteer_data.types import CapturedPrompt, CapturedShard, Prompt, RowIndex
from tests import oracle

Rows = Callable[[Sequence[int]], torch.Tensor]


@dataclass(frozen=True)
class ModelRun:
    """What a run of a model holds.

    Attributes:
        model: the model's folder.
        prompts: token ids of each prompt.
        generated: token ids of each completion.
        positions: the positions whose rows are stored, of n_tokens read; all by default.
        layer_ids: the layers stored.
        dtype: storage dtype.
        model_dtype: dtype that the run says its model had.
        rows: token ids -> rows [n_tokens, n_layers, width] of all layers; block outputs by default.
        alter: (prompt, layer) -> change of the layer's stored rows.
        listed: token ids that the prompt table has of each prompt; those of `prompts` by default.
    """

    model: Path
    prompts: Sequence[Sequence[int]]
    generated: Sequence[Sequence[int]] = ()
    positions: Callable[[int], Sequence[int]] = range
    layer_ids: tuple[int, ...] = (0, 1, 2)
    dtype: str = "float32"
    model_dtype: str = "float32"
    rows: Rows | None = None
    alter: dict[tuple[int, int], Callable[[torch.Tensor], torch.Tensor]] = field(default_factory=dict)
    listed: Sequence[Sequence[int]] | None = None

    def write(self, folder: Path) -> Path:
        """Write the run in two shards, and return its folder."""
        n_rows = [len(self._index(i)) for i in range(len(self.prompts))]
        width = int(oracle.block_outputs(self.model, self.prompts[0])[0].shape[1])
        stream = StreamHeader(self.layer_ids, width, self.dtype)
        header = RunHeader(
            fingerprint="made-for-a-test",
            settings={},
            model={"name": "tiny", "dtype": self.model_dtype, "sha256": sha256_of(self.model)},
            tokenizer={},
            corpus={"name": "made-up-corpus"},
            versions={},
            layer_convention="made up",
            streams={"hidden_states": stream},
            label=LabelHeader(None, ()),
            plan=plan_shards(n_rows, stream.row_bytes, min_shards=2),
        )
        writer = RunWriter.open(folder, header)
        for number, prompts in enumerate(header.plan):
            writer.write(self._shard(number, range(*prompts), stream.torch_dtype))
        writer.close()
        return folder

    def _read(self, index: int) -> list[int]:
        """The tokens that the model reads: the last one generated is never fed back."""
        return [*self.prompts[index], *self._completion(index)[:-1]]

    def _completion(self, index: int) -> Sequence[int]:
        return self.generated[index] if self.generated else ()

    def _index(self, index: int) -> RowIndex:
        token_ids = self._read(index)
        positions = torch.tensor(list(self.positions(len(token_ids))), dtype=torch.int32)
        chosen = torch.tensor(token_ids, dtype=torch.int32)[positions.long()]
        return RowIndex(torch.full_like(positions, index), positions, chosen)

    def _layers(self, index: int, dtype: torch.dtype) -> list[torch.Tensor]:
        token_ids = self._read(index)
        if self.rows is None:
            rows = torch.stack(oracle.block_outputs(self.model, token_ids), dim=1)
        else:
            rows = self.rows(token_ids)
        rows = rows[self._index(index).position.long()]
        layers = []
        for layer_id in self.layer_ids:
            change = self.alter.get((index, layer_id))
            layers.append((change(rows[:, layer_id].clone()) if change else rows[:, layer_id]).to(dtype))
        return layers

    def _shard(self, number: int, prompts: range, dtype: torch.dtype) -> CapturedShard:
        parts = [self._index(index) for index in prompts]
        labels = RowIndex(
            torch.cat([part.prompt for part in parts]),
            torch.cat([part.position for part in parts]),
            torch.cat([part.token_id for part in parts]),
        )
        layers = zip(*(self._layers(index, dtype) for index in prompts), strict=True)
        values = {layer: torch.cat(rows) for layer, rows in zip(self.layer_ids, layers, strict=True)}
        listed = self.listed or self.prompts
        captured = tuple(
            CapturedPrompt(
                Prompt(i, f"id-{i}", f"text {i}", f"made.txt:{i + 1}", token_ids=tuple(listed[i])),
                len(part),
                generated_token_ids=tuple(self._completion(i)),
            )
            for i, part in zip(prompts, parts, strict=True)
        )
        return CapturedShard(number, captured, labels, {"hidden_states": values})


def sha256_of(model: Path) -> dict[str, str]:
    """File name -> sha256 of what makes a model folder this model."""
    files = [
        model / "config.json",
        *model.glob("generation_config.json"),
        *sorted(model.glob("*.safetensors")),
    ]
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
