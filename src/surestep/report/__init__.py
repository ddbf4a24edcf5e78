"""What a run has shown: as text, as a page with figures, as tables."""

from typing import TYPE_CHECKING

from surestep.base.lazy import lazy_attributes
from surestep.report.files import write_report
from surestep.report.summary import summary

if TYPE_CHECKING:
    from surestep.report.tables import frame, timings, trajectories

__all__ = ["frame", "summary", "timings", "trajectories", "write_report"]

# Importing pandas takes half a second, so tables are imported by who asks for one.
_TABLES = ("frame", "timings", "trajectories")
__getattr__ = lazy_attributes(
    "surestep.report", {name: f"surestep.report.tables:{name}" for name in _TABLES}
)
