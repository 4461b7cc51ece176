"""Writes the pins beside it: `cpu.txt` (what the demo runs on) and `dev.txt` (what the checks add to it).

Resolves the extras of pyproject.toml with pip, then leaves out what vLLM names but text models on the CPU
never import. Knows nothing of the environment that it runs in, apart from its pip.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent

# What the scripts need on top of pyproject.toml: the reader of the demo model's file, and what
# `pip install --no-build-isolation -e .` builds with.
SCRIPT_REQUIREMENTS = ["gguf", "editables"]

# Each of these is imported by vLLM or FastAPI only for the feature named, or behind `except ImportError`.
LEFT_OUT = {
    "torchvision": "vision models; its wheels do not load beside the CPU build of torch",
    "torchaudio": "audio models",
    "torchcodec": "video and audio files",
    "triton": "GPU kernels; 1 GB, and unused on the CPU",
    "opencv-python-headless": "video files",
    "anthropic": "the HTTP server's Anthropic dialect",
    "mcp": "the HTTP server's tool servers",
    "model-hosting-container-standards": "the HTTP server on SageMaker",
    "prometheus-fastapi-instrumentator": "the HTTP server's metrics",
    "fastapi-cli": "the command line of FastAPI",
    "fastapi-cloud-cli": "the command line of FastAPI",
}

Report = dict[str, dict[str, Any]]
"""Canonical name -> the metadata of the release that pip chose."""


def read_requirements() -> tuple[list[str], list[str]]:
    """Return what the CPU environment asks for, and what the checks ask for beside it."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project = pyproject["project"]
    extras = project["optional-dependencies"]
    build = pyproject["build-system"]["requires"]
    return [*project["dependencies"], *extras["cpu"], *build, *SCRIPT_REQUIREMENTS], extras["dev"]


def resolve(requirements: Iterable[str], constraints: Iterable[Path]) -> Report:
    """Let pip choose a release of everything; nothing is installed.

    Raises:
        subprocess.CalledProcessError: pip found no solution; its own words are on the terminal.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        options = [option for path in constraints for option in ("--constraint", str(path))]
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--ignore-installed"]
        subprocess.run([*command, "--report", str(report), *options, *requirements], check=True)
        items = json.loads(report.read_text(encoding="utf-8"))["install"]
    return {canonicalize_name(item["metadata"]["name"]): item["metadata"] for item in items}


def reach(requirements: Iterable[str], report: Report) -> set[str]:
    """Return the names that `requirements` lead to without passing through a package that is left out."""
    reached: set[tuple[str, frozenset[str]]] = set()
    waiting = [Requirement(text) for text in requirements]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        key = (name, frozenset(requirement.extras))
        if name in LEFT_OUT or key in reached:
            continue
        reached.add(key)
        for text in report[name].get("requires_dist", []):
            wanted = Requirement(text)
            extras = ["", *requirement.extras]
            if wanted.marker is None or any(wanted.marker.evaluate({"extra": extra}) for extra in extras):
                waiting.append(wanted)
    return {name for name, _ in reached}


def write_lock(path: Path, names: Iterable[str], report: Report, comment: Iterable[str]) -> None:
    """Write one pin a line under `comment`, less build tags such as `+cpu`: each machine has its own."""
    pins = [f"{report[name]['name']}=={report[name]['version'].split('+')[0]}" for name in sorted(names)]
    lines = [*(f"# {line}" for line in comment), *pins]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    """Keep the pins that still fit pyproject.toml, or choose the newest releases with --upgrade."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--upgrade", action="store_true", help="forget the present pins")
    arguments = parser.parse_args()
    paths = [HERE / "cpu.txt", HERE / "dev.txt"]
    cpu, dev = read_requirements()
    report = resolve([*cpu, *dev], [] if arguments.upgrade else [path for path in paths if path.exists()])

    names = reach(cpu, report)
    origin = "Written by scripts/lock/resolve.py; install with `pip install --no-deps`."
    reasons = [f"  {name}: {reason}" for name, reason in LEFT_OUT.items()]
    left_out = [
        "Left out on purpose, with what only they need, since text models on the CPU never import them:"
    ]
    write_lock(paths[0], names, report, [origin, *left_out, *reasons])
    write_lock(
        paths[1],
        reach([*cpu, *dev], report) - names,
        report,
        [origin, "What the checks need beside cpu.txt."],
    )


if __name__ == "__main__":
    main()
