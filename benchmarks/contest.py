"""Learned against classical solvers to equal accuracy, on one small run of all stages."""

import dataclasses
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.records import Contest, StageTime
from surestep import paper
from surestep.base.progress import Reporter
from surestep.evaluate.evaluated import Evaluated
from surestep.evaluate.test_set import EvaluateSettings
from surestep.paper.quadratics import BEST, TINY, Config, QuadraticsSettings
from surestep.problem.datasets import SplitSizes
from surestep.report import write_report
from surestep.run.pipeline import learn
from surestep.storage.run_folder import RunFolder
from surestep.train.locate import LocateSettings
from surestep.train.population import PopulationSettings
from surestep.train.sample import SampleSettings

ORDER = ("imitate", "locate", "sample", "certify", "evaluate", "report")
"""The stages of a run, as data flows."""

SMALL = dataclasses.replace(
    BEST,
    preset="best, small",
    problem=QuadraticsSettings(dimension=100),
    horizon=50,
    sizes=SplitSizes(100, 100, 100, 100),
    population=PopulationSettings(),
    locate=LocateSettings(
        steps=1_000, learning_rate=0.01, halve_every=250, length=(5, 10), check_every=250,
        chunk=250, keep="best",
    ),
    sample=SampleSettings(samples=10, length=10),
    constraint=TINY.constraint,
    evaluate=EvaluateSettings(limit=5_000, timed=50, shifted=0),
)  # fmt: skip
"""The preset `best` of the quadratics, small enough for a benchmark."""

SMALLER = dataclasses.replace(
    SMALL,
    preset="best, smaller",
    problem=QuadraticsSettings(dimension=20),
    horizon=20,
    sizes=TINY.sizes,
    locate=dataclasses.replace(SMALL.locate, steps=200, check_every=100, chunk=100),
    sample=SampleSettings(samples=3, length=10),
    evaluate=EvaluateSettings(
        limit=1_000, timed=20, shifted=0, baselines=("conjugate gradients", "L-BFGS")
    ),
)


def hold_contest(quick: bool, report: Reporter) -> tuple[list[Contest], list[StageTime]]:
    """Learn in a folder that is thrown away, and see who was how fast."""
    config: Config = SMALLER if quick else SMALL
    with tempfile.TemporaryDirectory(prefix="surestep-bench-") as place:
        folder = RunFolder(Path(place) / "run")
        learned = learn(config, paper.build(config), folder, report)
        began = time.monotonic()
        write_report(learned, folder)
        seconds = {"report": time.monotonic() - began}
        status = folder.status()
    seconds |= {name: facts["seconds"] for name, facts in status.items() if "seconds" in facts}
    times = [
        StageTime(config.name, config.preset, stage, seconds[stage])
        for stage in ORDER
        if stage in seconds
    ]
    return contests(config, learned.evaluation), times


def contests(config: Config, evaluated: Evaluated) -> list[Contest]:
    """What every solver needed to every accuracy."""
    gradients, missed = evaluated.gradient_quantile(0.5), evaluated.missed()
    seconds = np.median(evaluated.seconds, axis=2)
    return [
        Contest(
            config.name,
            config.preset,
            accuracy,
            solver,
            float(gradients[s, a]),
            float(seconds[s, a]),
            int(missed[s, a]),
            evaluated.seconds.shape[2],
        )
        for a, accuracy in enumerate(evaluated.accuracy_names())
        for s, solver in enumerate(evaluated.solvers)
    ]
