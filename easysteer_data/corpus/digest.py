"""The hash that tells two corpora apart. Knows no files: where prompts were read from plays no part."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

from easysteer_data.types import Prompt

_as_json = json.JSONEncoder(sort_keys=True).encode


def corpus_hash(prompts: Iterable[Prompt]) -> str:
    """Return the sha256, in hex, of ids, texts, labels, groups, splits and fields, in corpus order.

    Each prompt is one JSON list on a line of its own. JSON escapes line ends and quotes and keeps 1,
    1.0, "1", true and null apart, so different corpora never give the same bytes to hash. The order of
    a prompt's fields plays no part.
    """
    digest = hashlib.sha256(b"easysteer-data corpus 1\n")
    for prompt in prompts:
        content = [prompt.id, prompt.text, prompt.label, prompt.group, prompt.split, dict(prompt.fields)]
        digest.update(_as_json(content).encode("ascii") + b"\n")
    return digest.hexdigest()
