"""Benchmarks: how long every stage takes, how that grows, and whether a version has become slower.

`surestep bench` measures and writes a file and a page; `surestep bench --compare` judges two files.
"""

from benchmarks.compare import Change, compare
from benchmarks.fit import Exponent, fit_exponent
from benchmarks.records import Suite, load_suite, save_suite
from benchmarks.suite import PARTS, run_suite

__all__ = [
    "PARTS",
    "Change",
    "Exponent",
    "Suite",
    "compare",
    "fit_exponent",
    "load_suite",
    "run_suite",
    "save_suite",
]
