"""Shared fixtures: tiny models, one engine at a time, the demo model."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ.update(
    HF_HUB_OFFLINE="1",
    TOKENIZERS_PARALLELISM="false",
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_LOGGING_LEVEL="ERROR",
    VLLM_NO_USAGE_STATS="1",
)

from scripts.fetch_demo_model import fetch
from tests.tiny import save_tiny

# Tests that load vLLM into this process. They come last: where it is loaded, loader processes are spawned and
# not forked, which takes each of them seconds.
_WITH_ENGINE = (
    "capture_run",
    "engine",
    "hidden_states",
    "pipelines",
    "steering",
    "test_demo.py",
    "test_readme.py",
    "test_verify.py",
)


# Files that take minutes begin first, each among its own: two processes then end at about the same time.
_LONG = (
    "test_datamodule_ddp.py",
    "test_capture_killed.py",
    "test_demo.py",
    "test_smollm2.py",
    "test_ray_capture.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    root = Path(__file__).parent

    def turn(item: pytest.Item) -> tuple[bool, bool]:
        return item.path.relative_to(root).parts[0] in _WITH_ENGINE, item.path.name not in _LONG

    items.sort(key=turn)


class Engines:
    """Opens tapped engines, one at a time: vLLM holds process-wide state, so the last one makes way."""

    def __init__(self) -> None:
        self._key: tuple[str, str] | None = None
        self._llm: Any = None

    def get(self, model: Path, **options: Any) -> Any:
        """Return an engine of exactly these options, the open one where it has them."""
        from easysteer_data.engine.open import open_llm

        key = (str(model), repr(sorted(options.items())))
        if key != self._key:
            self.close()
            # 128 tokens a step, 8 prompts at once: long prompts are chunked and batches are mixed.
            defaults: dict[str, Any] = {
                "dtype": "float32",
                "enforce_eager": True,
                "in_process": True,
                "kv_cache_memory_bytes": 2**28,
                "max_model_len": 512,
                "max_num_batched_tokens": 128,
                "max_num_seqs": 8,
            }
            self._llm = open_llm(str(model), **(defaults | options))
            self._key = key
        return self._llm

    def close(self) -> None:
        from easysteer_data.engine.open import close_llm

        if self._llm is not None:
            close_llm(self._llm)
        self._llm, self._key = None, None


@pytest.fixture(scope="session")
def engines() -> Iterator[Engines]:
    opened = Engines()
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("models") / "llama")


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The demo's model; made in a minute where it is not in the cache."""
    return fetch(Path(__file__).parents[1] / ".cache")


@pytest.fixture
def llm(engines: Engines, tiny_model: Path) -> Any:
    """The session's usual engine: a tiny Llama, eager, prefix caching on, both streams of a dense model."""
    return engines.get(tiny_model, streams=("hidden_states", "attention_heads"))
