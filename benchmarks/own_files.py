"""Examples as users run them: `python -m benchmarks.own_files` writes `docs/results/families.json`.

Each file is given to `surestep run` in a process of its own, with an empty cache. What is written
down is read from the run's folder.
"""

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.results import STORED
from surestep import __version__
from surestep.auto.choice_file import CHOICE, read_choice
from surestep.base.machine import provenance
from surestep.paper import registry
from surestep.run.learned import Learned
from surestep.run.stored import read_learned
from surestep.storage.files import write_text
from surestep.storage.run_folder import RunFolder

EXAMPLES = Path(__file__).parents[1] / "examples"
SEED = 0


class Entry(NamedTuple):
    """A file, and how long its run may take."""

    problem: str
    family: str
    budget: str


ENTRIES = (
    Entry("examples/03_logistic_regression.py", "logistic regression, 31 weights", "1m"),
    Entry("examples/04_control.py", "control, 40 forces in a box", "1m"),
    Entry("examples/05_robust_regression.py", "robust regression, 20 coefficients", "1m"),
    Entry("examples/06_pictures.py", "denoising, 32 x 32 pixels", "2m"),
    Entry("surestep new", "logistic regression on correlated features, 20 weights", "30s"),
)


def main() -> None:
    """Run every file, and write the records."""
    device = sys.argv[1] if len(sys.argv) > 1 else f"{os.cpu_count()} CPU cores"
    runs = [measured(entry, device) for entry in ENTRIES]
    write_text(STORED / "families.json", json.dumps({"notes": [], "runs": runs}, indent=2) + "\n")


def measured(entry: Entry, device: str) -> dict[str, Any]:
    """One run, from the command to its record."""
    with tempfile.TemporaryDirectory() as place:
        file, out = Path(place) / "mine.py", Path(place) / "run"
        caches = os.environ | {"XDG_CACHE_HOME": place}
        words = [sys.executable, "-m", "surestep.cli"]
        if entry.problem == "surestep new":
            subprocess.run([*words, "new", str(file)], check=True, env=caches)
        else:
            file.write_bytes((EXAMPLES / Path(entry.problem).name).read_bytes())
        began = time.monotonic()
        run = ["run", str(file), "--budget", entry.budget, "--seed", str(SEED), "--out", str(out)]
        subprocess.run([*words, *run], check=True, env=caches)
        wall = time.monotonic() - began
        folder = RunFolder(out)
        config = registry.read_config(folder)
        experiment = registry.build(config, str(file), folder)
        choice = read_choice(out / CHOICE, experiment.problem)
        learned = read_learned(config, experiment, folder)
        return {
            **entry._asdict(),
            "seed": SEED,
            "version": __version__,
            "device": device,
            "jax": provenance()["jax"],
            "precision": experiment.problem.precision,
            "source": "python -m benchmarks.own_files",
            "chosen": choice.words,
            "left_out": list(config.problem.left_out),
            **numbers(learned),
            "wall_seconds": round(wall),
            "training_seconds": round(learned.training_seconds),
        }


def numbers(learned: Learned) -> dict[str, Any]:
    """Gradients and milliseconds to each accuracy, and what is certified."""
    evaluation = learned.evaluation
    middle, high = (evaluation.gradient_quantile(share) for share in (0.5, 0.9))
    instances = evaluation.seconds.shape[2]
    solvers = {
        name: [
            {
                "gradients": {"median": _whole(middle[s, a]), "p90": _whole(high[s, a])},
                "alone": _digits(1e3 * evaluation.mean_seconds()[s, a]),
                "batch": _digits(1e3 * evaluation.seconds_batch[s, a] / instances),
            }
            for a in range(len(evaluation.accuracies))
        ]
        for s, name in enumerate(evaluation.solvers)
    }
    return {
        "accuracies": evaluation.accuracy_names(),
        "instances": instances,
        "solvers": solvers,
        "pays": [_whole(one.solves) for one in learned.break_even()],
        "certified": learned.certificate.statements[0].plain,
    }


def _whole(number: float) -> int | None:
    return math.ceil(number) if np.isfinite(number) else None


def _digits(number: float) -> float | None:
    return float(f"{number:.2g}") if np.isfinite(number) else None


if __name__ == "__main__":
    main()
