"""What is known of a model without running it: its shape and its fingerprint."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from easysteer_data.errors import SettingsError

_WEIGHTS = "*.safetensors"


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A model's shape.

    Attributes:
        name: last part of the folder's path.
        n_layers: decoder blocks.
        hidden_size: width of the residual stream.
        window: longest prompt plus completion, in tokens, that the model was made for.
        dtype: dtype of the weights, as in "float32".
        fingerprint: file name -> sha256 of the config and the weights.
    """

    name: str
    n_layers: int
    hidden_size: int
    window: int
    dtype: str
    fingerprint: Mapping[str, str]


def read_model_facts(folder: str) -> ModelFacts:
    """Read a model folder's config and hash its files.

    Raises:
        SettingsError: the folder or its config.json or weights are missing.
    """
    path = Path(folder)
    if not path.is_dir():
        raise SettingsError(
            f"model.path {folder!r} is no folder; give the folder of a Hugging Face model (for the demo's "
            "model, run scripts/fetch_demo_model.py)"
        )
    weights = sorted(path.glob(_WEIGHTS))
    if not weights or not (path / "config.json").is_file():
        raise SettingsError(f"model.path {folder!r} needs a config.json and {_WEIGHTS} files")
    generation = sorted(path.glob("generation_config.json"))  # vLLM takes the tokens that end a text from it
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(path).get_text_config()
    return ModelFacts(
        name=path.resolve().name,
        n_layers=int(config.num_hidden_layers),
        hidden_size=int(config.hidden_size),
        window=int(config.max_position_embeddings),
        dtype=str(config.dtype or "float32").removeprefix("torch."),
        fingerprint={file.name: _sha256(file) for file in (path / "config.json", *generation, *weights)},
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
