"""Kill a run again and again, let it go on, and compare: `make crash`.

    PYTHONPATH=tests python -m house.crash --kills 300 --seed 0

A run that visits every stage is killed before a random change of a file (opening, renaming,
removing, in every stage), or at a random time, and taken up by `run` or `resume`, maybe to be
killed again. Once it has ended, everything that it computed must have the bits of a run that was
left alone; only measured times may differ.
"""

import argparse
import collections
import dataclasses
import os
import random
import shutil
import tempfile
import time
from pathlib import Path

import jax
import numpy as np
from jax._src import xla_bridge

from house.crash_child import run
from surestep.evaluate.evaluated import Evaluated
from surestep.storage.run_folder import RunFolder

SETTINGS = [
    "run", "quadratics", "--preset", "tiny", "--sizes.prior", "24", "--sizes.train", "24",
    "--sizes.test", "8", "--imitate.steps", "200", "--population.members", "2",
    "--population.steps", "50", "--population.instances", "8", "--locate.steps", "200",
    "--locate.check-every", "50", "--locate.chunk", "50", "--sample.samples", "3",
    "--sample.burn-in", "1", "--sample.thinning", "1", "--evaluate.limit", "20",
    "--evaluate.timed", "2", "--goal.scale", "4.0",
    "--evaluate.baselines", "heavy ball", "--certify.opponents", "heavy ball",
]  # fmt: skip
SAME = ("config.json", "plan.json", "charges.json", "certificate.json", "chosen_by.safetensors",
        "population.safetensors",
        "locate.safetensors", "sample.safetensors", "certify.safetensors", "shifted.safetensors",
        "solver.safetensors")  # fmt: skip
KILLED = -9


@dataclasses.dataclass
class Bench:
    """Where runs are made, and the compiled programs that they share."""

    place: Path

    def start(self, name: str, command: list[str], before: int = 0, after: float = 0.0) -> int:
        """Run a command in a process of its own; only its drawing is left out, most of the time."""
        said = self.place / "said"
        child = os.fork()
        if child == 0:
            try:
                draws = name == "alone"
                run(self.place / name, self.log(name), said, before, after, command, draws)
            finally:
                os._exit(70)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code not in (0, KILLED):
            raise AssertionError(f"{name} ended with {code}: {said.read_text()[-3000:]}")
        return code

    def log(self, name: str) -> Path:
        """Where kills are noted."""
        return self.place / f"{name}.log"

    def command(self, folder: Path, chance: random.Random) -> list[str]:
        if (folder / "config.json").exists() and chance.random() < 0.5:
            return ["resume", str(folder)]
        return [*SETTINGS, "--out", str(folder)]


def differences(found: Path, wanted: Path) -> list[str]:
    """What is not as in the run that was left alone."""
    wrong = [name for name in SAME if (found / name).read_bytes() != (wanted / name).read_bytes()]
    one, other = (RunFolder(path).load("evaluate", Evaluated) for path in (found, wanted))
    for field in dataclasses.fields(Evaluated):
        a, b = getattr(one, field.name), getattr(other, field.name)
        same = np.array_equal(a, b, equal_nan=True) if isinstance(a, np.ndarray) else a == b
        if "seconds" not in field.name and not same:
            wrong.append(f"evaluate: {field.name}")
    wrong += [p.name for p in found.rglob("*") if ".new" in p.name or "partial" in p.name]
    wrong += [name for name in ("report.html",) if not (found / name).exists()]
    return wrong


def torture(bench: Bench, kills: int, seed: int) -> tuple[int, int, collections.Counter[str]]:
    """Kill so often; returns kills, runs and where it happened. A difference is an error."""
    alone = bench.place / "alone"
    began = 0.0
    for _ in range(2):  # the second is the same with all programs compiled, and timed
        shutil.rmtree(alone, ignore_errors=True)
        began = time.monotonic()
        assert bench.start("alone", [*SETTINGS, "--out", str(alone)]) == 0
    lasts = time.monotonic() - began
    changes = int(bench.log("alone").read_text().split()[-1])
    print(f"left alone: {changes} changes of files, {lasts:.1f} s", flush=True)
    done = runs = 0
    places: collections.Counter[str] = collections.Counter()
    while done < kills:
        chance = random.Random(f"{seed} {runs}")
        name = f"run{runs}"
        folder = bench.place / name
        while True:
            before, after = 0, 0.0
            if done < kills and chance.random() < 0.8:
                if chance.random() < 0.8:
                    # A run that goes on makes fewer changes, and may end before it is killed.
                    before = chance.randint(1, changes)
                else:
                    after = chance.uniform(0.0, lasts / 2)
            if bench.start(name, bench.command(folder, chance), before, after) == 0:
                break
            done += 1
            places[_place(bench.log(name).read_text().splitlines()[-1])] += 1
        wrong = differences(folder, alone)
        if wrong:
            raise AssertionError(f"{wrong} differ: {bench.log(name).read_text()}")
        runs += 1
        print(f"{done} kills, {runs} runs: the same bits", flush=True)
        shutil.rmtree(folder)
    return done, runs, places


def _place(said: str) -> str:
    """The change of a file before which it was killed, without numbers of processes."""
    what, _, name = said.removeprefix("killed ").partition(" ")
    if what == "os.mkdir" and name != "figures":
        name = "the run's folder"
    return f"{what} {name if not name.endswith('.new') else name.rsplit('.', 2)[0] + '.new'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    began = time.monotonic()
    # Processes are forked off before JAX computes anything: its threads would not come along.
    assert not xla_bridge._backends
    with tempfile.TemporaryDirectory(prefix="surestep-crash") as place:
        jax.config.update("jax_compilation_cache_dir", f"{place}/compiled")
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
        done, runs, places = torture(Bench(Path(place)), given.kills, given.seed)
    for name, count in sorted(places.items()):
        print(f"{count:>5}  {name}")
    print(
        f"{done} kills in {runs} runs, at {len(places)} places, no difference, seed {given.seed}, "
        f"{time.monotonic() - began:.0f} s"
    )


if __name__ == "__main__":
    main()
