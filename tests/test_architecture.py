"""The rooms and their import rules, read from the source with ast. Needs neither vllm nor a GPU."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# Third-party name -> the files or rooms that may import it. A key matches itself and its submodules; the
# longest matching key decides, so "vllm." (any submodule) is stricter than "vllm".
ALLOWED = {
    "vllm.": {"easysteer_data/engine/"},
    "vllm": {"easysteer_data/engine/"},
    "triton": {"easysteer_data/engine/steer_kernel.py", "easysteer_data/engine/tap_kernel.py"},
    "transformers": {
        "easysteer_data/engine/",
        "easysteer_data/tokens.py",
        "easysteer_data/spans.py",
        "easysteer_data/row_selection.py",
        "easysteer_data/model_facts.py",
        "easysteer_data/verify/reference.py",
    },
    "webdataset": {"easysteer_data/shards/"},
    "lightning": {
        "easysteer_data/datamodule.py",
        "easysteer_data/streaming_datamodule.py",
        "easysteer_data/probes/",
    },
    "torchmetrics": {"easysteer_data/probes/"},
    "matplotlib": {
        "easysteer_data/plots/",
        "easysteer_data/report.py",
        "easysteer_data/report_page/",
        "easysteer_data/notebook/figures.py",
    },
    "jinja2": {"easysteer_data/chat.py", "easysteer_data/report_page/"},
    "pandas": {"easysteer_data/notebook/"},
    "pydantic": {"easysteer_data/settings/"},
    "pyarrow": {"easysteer_data/corpus/", "easysteer_data/serving/rows.py", "easysteer_data/shards/"},
    "ray": {
        "easysteer_data/capture_run/executors/ray_capture.py",
        "easysteer_data/capture_run/executors/ray_pool.py",
    },
    "numba": {"easysteer_data/compiled.py", "easysteer_data/engine/copy_kernel.py"},
    "llvmlite": {"easysteer_data/compiled.py"},
    "gguf": {"easysteer_data/vectors/gguf_file.py"},
    "tqdm": {"easysteer_data/capture_run/progress.py"},
    "datasets": {"easysteer_data/corpus/"},
    "hydra": {"pipelines/"},
    "omegaconf": {"pipelines/"},
    "pickle": set(),
    "cloudpickle": set(),
    "dill": set(),
    "shelve": set(),
    "marshal": set(),
}

# low -> high: a room imports only rooms of a lower rank; rooms of one rank do not know each other.
RANK = {
    "__main__": 9,
    "errors": -1,
    "types": 0,
    "cores": 0,
    "compiled": 0,
    "bos": 0,
    "ledger": 1,
    "plots": 1,
    "select": 1,
    "data_options": 1,
    "steer_options": 1,
    "spans": 1,
    "chat": 1,
    "corpus": 2,
    "model_facts": 2,
    "shards": 2,
    "tokens": 2,
    "row_selection": 2,
    "engine": 2,
    "settings": 3,
    "serving": 3,
    "run_folders": 4,
    "datamodule": 4,
    "streaming_datamodule": 4,
    "capture_run": 4,
    "vectors": 4,
    "probes": 5,
    "steering": 5,
    "verify": 5,
    "hidden_states": 6,
    "report": 6,
    "report_page": 6,
    "notebook": 7,
    "steer_trial": 7,
    "pipelines": 8,
}

FORBIDDEN_CALLS = {"torch.load", "np.load", "numpy.load", "pickle.loads", "torch.save"}


def sources() -> list[Path]:
    return sorted(p for d in ("easysteer_data", "pipelines") for p in (ROOT / d).rglob("*.py"))


def imports(path: Path) -> set[str]:
    """Every absolute module name imported anywhere in the file, lazy and TYPE_CHECKING ones too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add(node.module or "")
            if node.module in ("easysteer_data", "easysteer_data.shards"):
                found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def room(dotted: str) -> str | None:
    parts = dotted.split(".")
    if parts[0] == "pipelines":
        return "pipelines"
    return parts[1] if parts[0] == "easysteer_data" and len(parts) > 1 else None


@pytest.mark.parametrize("path", sources(), ids=relative)
def test_third_party_imports_stay_in_their_room(path: Path) -> None:
    for name in imports(path):
        keys = [k for k in ALLOWED if (name + ".").startswith(k if k.endswith(".") else k + ".")]
        keys = [k for k in keys if not (k.endswith(".") and name == k[:-1])]
        # Capture builds SamplingParams and LLM, vllm's public names, in the engine room only.
        if keys:
            key = max(keys, key=len)
            assert any(
                relative(path) == ok or (ok.endswith("/") and relative(path).startswith(ok))
                for ok in ALLOWED[key]
            ), f"{relative(path)} imports {name}; allowed only in {sorted(ALLOWED[key]) or 'no file'}"


@pytest.mark.parametrize("path", sources(), ids=relative)
def test_rooms_import_downwards_only(path: Path) -> None:
    mine = room(relative(path).removesuffix(".py").replace("/", "."))
    if mine is None or mine == "__init__":
        return
    for name in imports(path):
        theirs = room(name)
        if theirs and theirs != mine:
            assert RANK[theirs] < RANK[mine], f"{relative(path)} ({mine}) imports {name} ({theirs})"


@pytest.mark.parametrize("path", sources(), ids=relative)
def test_relative_imports_are_for_pipelines_only(path: Path) -> None:
    levels = [n.level for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.ImportFrom)]
    assert not any(levels) or relative(path).startswith("pipelines/")


@pytest.mark.parametrize("path", sources(), ids=relative)
def test_no_file_loads_what_could_run_code(path: Path) -> None:
    calls = {ast.unparse(n.func) for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)}
    assert not calls & FORBIDDEN_CALLS


@pytest.mark.parametrize("path", sources(), ids=relative)
def test_no_assert_or_print_reaches_a_user(path: Path) -> None:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    assert not [node for node in nodes if isinstance(node, ast.Assert)]
    calls = [ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)]
    assert "print" not in calls


def test_importing_the_package_imports_neither_vllm_nor_lightning() -> None:
    code = "import sys, easysteer_data; print(sorted({'vllm', 'lightning', 'torch'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_public_names_are_sorted_and_all_resolve() -> None:
    import easysteer_data

    assert easysteer_data.__all__ == sorted(easysteer_data.__all__)
    for name in easysteer_data.__all__:
        assert getattr(easysteer_data, name).__name__ == name


def test_the_top_level_holds_nothing_else() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    top = {line.partition("/")[0] for line in listed.splitlines()}
    named = {"conf", "easysteer_data", "pipelines", "tests", "scripts", "pyproject.toml"}
    beside = {"README.md", "CHANGELOG.md", "LICENSE"}
    assert {name for name in top if not name.startswith(".")} <= named | beside
