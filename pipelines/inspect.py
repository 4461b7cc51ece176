"""A run of activations in, a table of what it is and of every file that is not as it was written out.

`python -m pipelines.inspect experiment=demo`, or `run=PATH` for any run.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace

from easysteer_data.capture_run import capture_corpus, plan_capture
from easysteer_data.errors import BadShardError, CorpusError, RunError, SettingsError
from easysteer_data.run_folders import run_folder
from easysteer_data.settings import ExperimentSettings
from easysteer_data.shards import RunInspection, inspect_run, repair_run

from .stage import run_stage


def stage(settings: ExperimentSettings) -> Mapping[str, object]:
    """Read every file of the run; an error if it is unfinished or a file is bad.

    With `inspect.repair`, bad shards are captured again where the experiment's settings are the run's, and
    else marked for the next capture with these.
    """
    inspection = (repair_run if settings.inspect.repair else inspect_run)(run_folder(settings))
    _show(inspection)
    if inspection.bad and settings.inspect.repair:
        inspection = _capture_again(settings, inspection)
    if inspection.bad:
        raise BadShardError(f"{inspection.failure}; inspect.repair=true has exactly these captured again")
    if not inspection.finished:
        raise RunError(f"{inspection.failure}; capture again with the same settings to finish it")
    return {"run": inspection.path, "inspect": "ok"}


def _capture_again(settings: ExperimentSettings, found: RunInspection) -> RunInspection:
    if not _same_settings(settings, found):
        raise RunError(
            f"{found.path}: the bad shards are marked as not done; the settings here are not the run's, so "
            "capture again with the run's own to finish it"
        )
    outcome = capture_corpus(replace(settings, on_existing="resume"), found.path)
    sys.stdout.write(f"{outcome}\n")
    inspection = inspect_run(found.path)
    _show(inspection)
    return inspection


def _same_settings(settings: ExperimentSettings, found: RunInspection) -> bool:
    """Whether the experiment describes this run; with its own run, the capture itself shows differences."""
    if settings.run is None:
        return True
    try:
        return plan_capture(settings).fingerprint == found.header.fingerprint
    except (SettingsError, CorpusError):  # such as a run from another machine, whose model is not here
        return False


def _show(inspection: RunInspection) -> None:
    sys.stdout.write(f"{inspection.table()}\n")
    sys.stdout.flush()


def main() -> None:
    """Entry point."""
    run_stage("inspect", stage)


if __name__ == "__main__":
    main()
