"""The whole suite: which parts there are, and how they are run."""

import datetime
import os
from collections.abc import Collection
from pathlib import Path

from benchmarks.cases import CASES, STAGES, Case, block_temporaries, temporary
from benchmarks.contest import hold_contest
from benchmarks.measure import ANCHOR, in_rounds
from benchmarks.memory import SMALLEST, measure_peak
from benchmarks.records import SCHEMA, Measured, Peak, Speed, Suite, Temporary
from benchmarks.speed import PATHS, measure_path
from surestep.base.errors import ConfigurationError, unknown
from surestep.base.machine import provenance
from surestep.base.progress import Reporter, Silence

PARTS = (*STAGES, "speed", "memory", "learned")
"""What `--only` can name: the stages, the hot paths, memory, and the learned rule's contest."""


def run_suite(
    only: Collection[str] = (), quick: bool = False, report: Reporter | None = None
) -> Suite:
    """Measure the parts that are named, by default all of them.

    A quick run has smaller sizes and fewer rounds; its file compares with that of another quick
    run.
    """
    require_parts(only)
    report, chosen, rounds = report or Silence(), set(only or PARTS), 3 if quick else 5
    made_with = machine_facts(quick)
    measured: list[Measured] = []
    speeds: list[Speed] = []
    notes: list[str] = []
    cases = [case for case in CASES if case.stage in chosen]
    if cases:
        with report.stage("stages", len(cases), "cases") as bar:
            for case in cases:
                measured += measure_case(case, case.few if quick else case.sizes, rounds)
                bar.advance(1, f"{case.stage} by {case.axis}")
    if "speed" in chosen:
        with report.stage("speed", len(PATHS), "paths") as bar:
            for make in PATHS:
                try:
                    speeds.append(measure_path(make(quick), rounds))
                except ConfigurationError as error:
                    # Pictures need a library that not everyone has.
                    notes.append(f"{make.__name__}: {error}")
                bar.advance(1, make.__name__)
    peaks, temporaries = _memory(quick, report) if "memory" in chosen else ([], [])
    contests, stages = hold_contest(quick, report) if "learned" in chosen else ([], [])
    return Suite(SCHEMA, made_with, measured, speeds, peaks, temporaries, contests, stages, notes)


def require_parts(only: Collection[str]) -> None:
    """Refuse a name that is none of a part."""
    for part in only:
        if part not in PARTS:
            raise ConfigurationError(unknown("part of the benchmarks", part, PARTS))


def measure_case(case: Case, sizes: tuple[int, ...], rounds: int) -> list[Measured]:
    """Time a case at all sizes, in turns."""
    prepared = {size: case.prepare(size) for size in sizes}
    timed = in_rounds({str(size): one.call for size, one in prepared.items()}, rounds)
    return [
        Measured(
            stage=case.stage,
            axis=case.axis,
            size=size,
            seconds=[spell.seconds for spell in timed[str(size)]],
            processor=[spell.processor for spell in timed[str(size)]],
            anchor=[spell.processor for spell in timed[ANCHOR]],
            expected=case.expected,
            temporary_bytes=temporary(one),
        )
        for size, one in prepared.items()
    ]


def _memory(quick: bool, report: Reporter) -> tuple[list[Peak], list[Temporary]]:
    factors = (1, 4) if quick else (1, 8, 32)
    with report.stage("memory", len(factors), "processes") as bar:
        peaks = []
        for factor in factors:
            peaks.append(measure_peak(factor * SMALLEST))
            bar.advance(1, f"{factor * SMALLEST} instances")
    return peaks, block_temporaries((32, 64, 128, 256, 512, 1024), 128)


def machine_facts(quick: bool) -> dict[str, str]:
    """What computes, on what machine, how busy, and when."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count()
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    return provenance() | {
        "processor": _processor(),
        "cores": str(cores),
        "load": f"{load:.1f}",
        "when": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "sizes": "quick" if quick else "full",
    }


def _processor() -> str:
    facts = Path("/proc/cpuinfo")
    if facts.exists():
        for line in facts.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return "unknown"
