"""The README's example runs as it is printed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from easysteer_data.vectors import load_vector
from tests.runs import labelled_rows, write_run

README = Path(__file__).parents[2] / "easysteer_data" / "vectors" / "README.md"


def test_the_example_fits_and_saves_a_vector(tmp_path: Path) -> None:
    rows = labelled_rows((1.0, 2.0, 0.5, 2.0, 1.0))  # layers 0, 3, 6, 9, 12
    names: dict[str, Any] = {"run": write_run(tmp_path / "run", rows), "out": tmp_path / "out"}
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    exec(example, names)
    assert load_vector(tmp_path / "out" / "vector.safetensors").layer_ids == (9, 12)
    assert "logistic" in names["text"]
