"""Probes are trained without an engine beside them."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(autouse=True)
def _no_engine(engines: Any) -> None:
    """Close the session's engine: its process group makes Lightning take one device for a distributed run."""
    engines.close()
