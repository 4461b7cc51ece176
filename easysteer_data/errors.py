"""The error tree. Holds names only; imports nothing.

EasySteerDataError
├── SettingsError            a value or key of a configuration (ValueError)
├── CorpusError              a corpus file, line, column or prompt (ValueError)
├── EngineError              the engine can't do what was asked (RuntimeError)
│   ├── UnsupportedEngineError   this vLLM, model or parallel shape is not supported
│   └── ProofError           a captured row is missing, doubled, mislabelled or not a finite non-zero vector
└── RunError                 a run folder: manifest, shards, locks (RuntimeError)
    ├── SettingsMismatchError    the folder holds a run of other settings
    └── BadShardError        a shard is missing, truncated or altered
"""

from __future__ import annotations


class EasySteerDataError(Exception):
    """Base of every error that this package raises on purpose."""


class SettingsError(EasySteerDataError, ValueError):
    """A configuration holds an unknown key or a value that can't be used."""


class CorpusError(EasySteerDataError, ValueError):
    """A corpus can't be read as asked; the message names the file and, where there is one, the line."""


class EngineError(EasySteerDataError, RuntimeError):
    """The engine can't do what was asked."""


class UnsupportedEngineError(EngineError):
    """This vLLM version, model architecture or parallel shape is not supported."""


class ProofError(EngineError):
    """A captured row failed a gate; the message names the prompt, layer and position."""


class RunError(EasySteerDataError, RuntimeError):
    """A run folder can't be read or written as asked."""


class SettingsMismatchError(RunError):
    """The output folder holds a run that was made with other settings."""


class BadShardError(RunError):
    """A shard is missing, truncated or altered; the message lists every bad one by name."""
