"""Files of text in, `Prompt` records out: text, labels, groups, splits. Knows no tokens and no model."""

from __future__ import annotations

from easysteer_data.corpus.digest import corpus_hash
from easysteer_data.corpus.labels import LabelClasses, label_classes
from easysteer_data.corpus.prompts import read_corpus
from easysteer_data.corpus.settings import CorpusSettings, SplitSettings
from easysteer_data.corpus.splits import assign_splits

__all__ = [
    "CorpusSettings",
    "LabelClasses",
    "SplitSettings",
    "assign_splits",
    "corpus_hash",
    "label_classes",
    "read_corpus",
]
