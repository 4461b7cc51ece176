"""What a capture imports, for the server from which the tests' captures are forked."""

from __future__ import annotations

import transformers
import vllm

import easysteer_data.capture_run
import pipelines.capture

__all__ = ["easysteer_data", "pipelines", "transformers", "vllm"]
