"""A captured run as a notebook wants it: tables, rows, fits and figures in one line each.

Joins the rooms below it, which don't know each other; what is slow to import is imported when it is used.
"""

from __future__ import annotations

from easysteer_data.notebook.figures import figures_of
from easysteer_data.notebook.fits import fit_probe, fit_vector
from easysteer_data.notebook.run import Run, open_run

__all__ = ["Run", "figures_of", "fit_probe", "fit_vector", "open_run"]
