"""The report of an experiment as one page of HTML: what its folder holds, drawn and told.

Reads the files that stages write and the run's records; measures nothing but a probe's scores token by token.
"""

from __future__ import annotations

from easysteer_data.report_page.experiment import read_page
from easysteer_data.report_page.page import FIGURES, HTML_NAME, render, write_page
from easysteer_data.report_page.probe import probe_section
from easysteer_data.report_page.vectors import vector_section

__all__ = ["FIGURES", "HTML_NAME", "probe_section", "read_page", "render", "vector_section", "write_page"]
