"""Rows in, `Prompt` records out: texts, chats, pairs, labels, groups, splits. Knows no model."""

from __future__ import annotations

from easysteer_data.corpus.digest import corpus_hash
from easysteer_data.corpus.labels import LabelClasses, label_classes
from easysteer_data.corpus.prompts import read_corpus
from easysteer_data.corpus.report import CorpusReport, corpus_report
from easysteer_data.corpus.settings import CorpusSettings, SplitSettings
from easysteer_data.corpus.splits import assign_splits
from easysteer_data.corpus.store import PromptStore

__all__ = [
    "CorpusReport",
    "CorpusSettings",
    "LabelClasses",
    "PromptStore",
    "SplitSettings",
    "assign_splits",
    "corpus_hash",
    "corpus_report",
    "label_classes",
    "read_corpus",
]
