"""The hash that tells two corpora apart. Knows no files: where prompts were read from plays no part."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

from easysteer_data.types import Prompt

# A value that JSON does not know, such as a date, counts as its text.
_as_json = json.JSONEncoder(sort_keys=True, default=str).encode


def corpus_hash(prompts: Iterable[Prompt]) -> str:
    """Return the sha256, in hex, of ids, texts, tokens, labels, groups, splits and fields, in corpus order.

    Prompts that are tokenised have another hash than before: what the chat template, the policies and a
    given prompt's own tokens came to is a part of it.

    Each prompt is one JSON list on a line of its own. JSON escapes line ends and quotes and keeps 1,
    1.0, "1", true and null apart, so different corpora never give the same bytes to hash. The order of
    a prompt's fields plays no part.
    """
    digest = hashlib.sha256(b"easysteer-data corpus 2\n")
    for prompt in prompts:
        content = (prompt.id, prompt.text, prompt.token_ids, prompt.label, prompt.group, prompt.split)
        digest.update(_as_json([*content, dict(prompt.fields)]).encode("ascii") + b"\n")
    return digest.hexdigest()
