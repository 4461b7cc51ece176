"""Only vLLM releases that were tried are accepted, unless the user insists."""

from __future__ import annotations

import pytest

from easysteer_data.engine import versions
from easysteer_data.errors import UnsupportedEngineError


def test_the_installed_vllm_is_accepted() -> None:
    assert versions.check_vllm_version().startswith("0.")


@pytest.mark.parametrize("version", ["0.25.1", "0.34.0", "1.0.0"])
def test_another_release_is_refused_with_the_range(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(versions, "installed_vllm", lambda: ("vllm", version))
    with pytest.raises(UnsupportedEngineError, match=rf"{version} .* vLLM 0\.26 to 0\.33"):
        versions.check_vllm_version()
    monkeypatch.setenv(versions.OVERRIDE, "1")
    assert versions.check_vllm_version() == version


@pytest.mark.parametrize("version", ["0.26.0", "0.32.0+cpu", "0.33.7"])
def test_releases_of_the_range_are_accepted(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(versions, "installed_vllm", lambda: ("vllm", version))
    assert versions.check_vllm_version() == version


def test_no_vllm_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "installed_vllm", lambda: None)
    with pytest.raises(UnsupportedEngineError, match=r"pip install easysteer-data\[cpu\]"):
        versions.check_vllm_version()
