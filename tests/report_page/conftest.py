"""One experiment for all tests of the page: writing it takes seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from easysteer_data.report_page import read_page, write_page
from tests.report_page.made import write_experiment
from tests.tiny import save_tokenizer


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def experiment(tmp_path_factory: pytest.TempPathFactory, tokenizer_folder: Path) -> Path:
    """An experiment's folder and its report; tests leave it as it is."""
    out = write_experiment(tmp_path_factory.mktemp("experiment"), tokenizer_folder)
    write_page(read_page("<b>made</b> & up", out, out / "capture", str(tokenizer_folder)), out)
    return out
