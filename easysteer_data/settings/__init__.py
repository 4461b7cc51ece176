"""The typed settings of an experiment, one frozen dataclass a config group, and how they are read.

Pure checks, no I/O. `build` is the only way in from a config: unknown keys are refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from easysteer_data.corpus.settings import CorpusSettings
from easysteer_data.settings.building import build, unknown_key
from easysteer_data.settings.of_captures import (
    CaptureSettings,
    EngineSettings,
    ExecutorSettings,
    ModelSettings,
    ShardSettings,
    StorageDtype,
    UploadSettings,
)
from easysteer_data.settings.of_results import (
    DataSettings,
    EstimatorName,
    InspectSettings,
    LoggerSettings,
    ProbeKind,
    ProbeSettings,
    ReportSettings,
    VectorSettings,
    VerifySettings,
)
from easysteer_data.steer_options import SteerSettings
from easysteer_data.types import OnExisting

__all__ = [
    "CaptureSettings",
    "CorpusSettings",
    "DataSettings",
    "EngineSettings",
    "EstimatorName",
    "ExecutorSettings",
    "ExperimentSettings",
    "InspectSettings",
    "LoggerSettings",
    "ModelSettings",
    "ProbeKind",
    "ProbeSettings",
    "ReportSettings",
    "ShardSettings",
    "SteerSettings",
    "StorageDtype",
    "UploadSettings",
    "VectorSettings",
    "VerifySettings",
    "build",
    "unknown_key",
]


@dataclass(frozen=True, kw_only=True)
class ExperimentSettings:
    """Everything that defines an experiment; every stage reads its own part.

    Attributes:
        name: names the outputs.
        out: folder of the experiment's outputs; of a capture also a URL, s3://bucket/run or gs://.
        run: folder of the captured run, None = the experiment's own, OUT/capture.
        captures: folder of runs that experiments share, found by their fingerprint; OUT/capture is then a
            link. None = not shared. The jobs of a multirun share theirs.
        progress: show progress bars.
        select: which rows are kept, see RowSelection; None = all.
        on_existing: what a capture does with a run that is there: "resume" continues it or leaves it alone
            where it is finished, "fail" refuses, "overwrite" removes it first.
        dry_run: report what a capture would take, from a sample and a short trial of the engine; write none.
        shard_slice: of a capture: only this share of the shards, as "3/16", the third of sixteen; the stage
            merge joins them. None = all.
    """

    name: str
    out: str
    model: ModelSettings
    corpus: CorpusSettings
    engine: EngineSettings = field(default_factory=EngineSettings)
    capture: CaptureSettings = field(default_factory=CaptureSettings)
    select: Mapping[str, Any] | None = None
    shards: ShardSettings = field(default_factory=ShardSettings)
    executor: ExecutorSettings = field(default_factory=ExecutorSettings)
    upload: UploadSettings = field(default_factory=UploadSettings)
    data: DataSettings = field(default_factory=DataSettings)
    probe: ProbeSettings = field(default_factory=ProbeSettings)
    logger: LoggerSettings = field(default_factory=LoggerSettings)
    vector: VectorSettings = field(default_factory=VectorSettings)
    steer: SteerSettings = field(default_factory=SteerSettings)
    verify: VerifySettings = field(default_factory=VerifySettings)
    inspect: InspectSettings = field(default_factory=InspectSettings)
    report: ReportSettings = field(default_factory=ReportSettings)
    run: str | None = None
    captures: str | None = None
    progress: bool = True
    on_existing: OnExisting = "resume"
    dry_run: bool = False
    shard_slice: str | None = None
