"""The report page's figures of a result that is in memory, as matplotlib figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from easysteer_data.vectors import FittedVectors, vector_report_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from easysteer_data.probes import FittedProbe


def figures_of(fitted: FittedProbe | FittedVectors) -> dict[str, Figure]:
    """Every figure that a report page shows of a probe or of steering vectors, by name, as "probe-auroc"."""
    from easysteer_data.report_page import probe_section, vector_section  # imports matplotlib

    if isinstance(fitted, FittedVectors):
        section = vector_section(vector_report_json(fitted.report))
    else:
        section = probe_section(fitted.report.to_json(), lambda _: None)
    return {one.name: one.figure for one in section.figures}
