"""The report: one self-contained page about a run (`write_report`), or about several side by side (`write_comparison`).

Made from run directories alone. The page asks for nothing: data, style and scripts are in it (`assets/`).
"""

from raysim.observe.report.comparison import write_comparison
from raysim.observe.report.single import write_report

__all__ = ["write_comparison", "write_report"]
