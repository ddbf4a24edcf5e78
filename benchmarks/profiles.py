"""What limits each stage? A profile of all of them, on whatever device there is.

    python benchmarks/profiles.py [quadratics/paper image/quick ...] [--train 64] [--steps 500]

Every stage of a small run is recorded by JAX's profiler, after a run that compiles. The run has the
numbers of the preset but few steps, samples and instances, and a goal that every rule reaches, so
that nothing depends on what was learned. Of each stage the table says how long it took (without
the profiler, which slows short operations down), for which share of the recorded time the device
was at work, and what kind of operations its work was.
"""

import argparse
import collections
import contextlib
import dataclasses
import re
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax

from surestep import paper
from surestep.base.progress import Bar, Silence
from surestep.problem.goal import Goal
from surestep.run.batch_size import settled
from surestep.run.config import RunConfig
from surestep.run.pipeline import learn

KINDS = (
    ("loops", r"^(while|cond|call|conditional)\b|ThunkExecutor"),
    ("copies", r"(?i)^(copy|transpose|bitcast|slice|concatenate)[^_]*$|^mem(cpy|set)"),
    ("products", r"dot|gemm|cutlass|ynn|chain"),
    ("convolutions", r"conv(?!ert)"),
    ("elementwise", r""),
)  # fmt: skip
"""Kinds of operations by their names, the first that fits: XLA's on a processor, kernels' on a GPU.
What a loop takes beside the operations inside it is overhead."""

_HOST_ONLY = re.compile(r"^(Pjit|np\.|Common|Parse|Handle|Allocate|DevicePut|\$)|::(?!Execute$)| ")
"""Events of a processor that are no operations of a program."""


Event = tuple[float, float, str]
"""When it began, minus how long it took, both in nanoseconds, and its name."""


@dataclasses.dataclass(frozen=True)
class Profile:
    """What a device did during a stage."""

    seconds: float
    busy: float
    """Seconds in which at least one operation was under way."""
    kinds: dict[str, float]
    """Seconds by kind, over all threads or streams."""
    longest: str
    """The operation that took most time."""


class Clock(Silence):
    """Takes the time of every stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def stage(self, name: str, total: int, unit: str, done: int = 0) -> Iterator[Bar]:
        """Take the time."""
        began = time.perf_counter()
        yield self
        self.seconds[name] = time.perf_counter() - began


class Recorder(Clock):
    """Records every stage with the profiler."""

    def __init__(self) -> None:
        super().__init__()
        self.profiles: dict[str, Profile] = {}

    @contextlib.contextmanager
    def stage(self, name: str, total: int, unit: str, done: int = 0) -> Iterator[Bar]:
        """Record it."""
        options: Any = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0
        with tempfile.TemporaryDirectory() as place:
            with jax.profiler.trace(place, profiler_options=options):
                began = time.perf_counter()
                yield self
                seconds = time.perf_counter() - began
            (path,) = Path(place).rglob("*.xplane.pb")
            self.profiles[name] = read(path, seconds)


def read(path: Path, seconds: float) -> Profile:
    """What the profiler has written about a stage."""
    planes = list(jax.profiler.ProfileData.from_file(str(path)).planes)
    devices = [plane for plane in planes if plane.name.startswith("/device:")]
    if devices:
        # Lines beside the streams say the same by other names.
        lines = [line for plane in devices for line in plane.lines if "Stream" in line.name]
    else:
        lines = [line for plane in planes if plane.name == "/host:CPU" for line in plane.lines]
    own: dict[str, float] = collections.defaultdict(float)
    spans: list[tuple[float, float]] = []
    for line in lines:
        events = sorted(
            (event.start_ns, -event.duration_ns, event.name)
            for event in line.events
            if devices or not _HOST_ONLY.search(event.name)
        )
        # A device's kernels contain nothing, and some run at the same time.
        spent = [-minus for _, minus, _ in events] if devices else own_times(events)
        for (start, minus, name), nanoseconds in zip(events, spent, strict=True):
            own[re.sub(r"[._]\d+$", "", name)] += nanoseconds / 1e9
            spans.append((start, start - minus))
    kinds: dict[str, float] = collections.defaultdict(float)
    for name, spent in own.items():
        kinds[kind(name)] += spent
    longest = max(own, key=lambda name: own[name], default="")
    return Profile(seconds, covered(spans), dict(kinds), longest)


def kind(name: str) -> str:
    """The kind of an operation."""
    return next(kind for kind, pattern in KINDS if re.search(pattern, name))


def own_times(events: Sequence[Event]) -> list[float]:
    """Nanoseconds of sorted events that no event inside them accounts for."""
    found = [-minus for _, minus, _ in events]
    around: list[tuple[float, int]] = []
    for number, (start, minus, _) in enumerate(events):
        while around and around[-1][0] <= start:
            around.pop()
        if around:
            found[around[-1][1]] += minus
        around.append((start - minus, number))
    return found


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Seconds that lie in at least one span of nanoseconds."""
    total, end = 0.0, -1.0
    for start, stop in sorted(spans):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total / 1e9


def small(config: RunConfig[Any], train: int, samples: int, steps: int) -> RunConfig[Any]:
    """The preset's problem, horizon and rule with little to do."""
    return dataclasses.replace(
        config,
        goal=Goal(scale=1e12, exponent=1.0),
        sizes=dataclasses.replace(
            config.sizes, prior=min(64, train), validation=64, train=train, test=16
        ),
        imitate=dataclasses.replace(config.imitate, steps=steps, chunk=steps),
        population=dataclasses.replace(config.population, members=1),
        locate=dataclasses.replace(config.locate, steps=steps, check_every=steps, chunk=steps),
        sample=dataclasses.replace(config.sample, samples=samples, burn_in=0, thinning=1),
        evaluate=dataclasses.replace(config.evaluate, timed=1, limit=50, factor=1, shifted=0),
    )


def main() -> None:
    """Profile the problems, and print a table of each."""
    parser = argparse.ArgumentParser(description=__doc__)
    # MNIST's steps are loops of so many small operations that a recording is too large to read.
    usual = [f"{name}/paper" for name in paper.NAMES if name != "mnist"]
    parser.add_argument("presets", nargs="*", default=usual)
    parser.add_argument("--train", type=int, default=64, help="train instances")
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--steps", type=int, default=500, help="of training")
    arguments = parser.parse_args()
    print(f"JAX {jax.__version__} on {jax.devices()[0].device_kind}", flush=True)
    for given in arguments.presets:
        preset = paper.preset(*given.split("/"))
        config = small(preset, arguments.train, arguments.samples, arguments.steps)
        experiment = paper.build(config)
        config = settled(config, experiment)
        learn(config, experiment)
        clock, recorder = Clock(), Recorder()
        learn(config, experiment, report=clock)
        learn(config, experiment, report=recorder)
        print(f"\n{given}: {config.block} instances, {config.sample_block} samples a batch")
        print("| stage | clock | at work | " + " | ".join(k for k, _ in KINDS) + " | longest |")
        print("| --- |" + " ---: |" * (2 + len(KINDS)) + " --- |")
        for stage, found in recorder.profiles.items():
            whole = sum(found.kinds.values()) or 1.0
            shares = " | ".join(f"{found.kinds.get(k, 0.0) / whole:.0%}" for k, _ in KINDS)
            busy = found.busy / found.seconds
            took = f"{1e3 * clock.seconds[stage]:.3g} ms"
            print(
                f"| {stage} | {took} | {busy:.0%} | {shares} | {found.longest[:40]} |", flush=True
            )


if __name__ == "__main__":
    main()
