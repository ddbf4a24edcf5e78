"""How much is rolled out side by side: measured once on a processor, and remembered there.

A pace changes how fast a run is, and the last bits of what it observes. So a run keeps the one
that it began with, and without a place to remember it there is one for all.
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from surestep.base.compilation_cache import own_folder
from surestep.base.errors import RunFolderError
from surestep.base.keys import named_key
from surestep.base.progress import Reporter, Silence
from surestep.problem.base import Problem, Theta, count, instance
from surestep.problem.datasets import PriorSet
from surestep.problem.draw import working_precision
from surestep.problem.form import named_leaves, theta_form
from surestep.rollout.loop import BLOCK, observe
from surestep.rules.base import Rule, hyper_of
from surestep.run.config import RunConfig
from surestep.storage.files import parse_json, write_text
from surestep.storage.run_folder import RunFolder
from surestep.train.experiment import Experiment

WORTH_IT = 2e7
"""How many numbers a run must iterate before it is measured first: samples, train instances,
iterations and variables, multiplied."""
_LARGE = 4096
"""From how many variables on a single instance may be enough for a processor."""
_AT_ONCE = 2**22
"""How many numbers an accelerator iterates at once: enough to be busy, and few gigabytes."""
_ITERATIONS = 8
_ROUNDS = 3
_LONG_ENOUGH = 0.15
"""Seconds: what is faster is measured more often."""
_ROOM = 2 * 2**30
"""Bytes that a program may need for what is side by side."""


@dataclasses.dataclass(frozen=True)
class Pace:
    """How many instances and how many samples are side by side in one program."""

    block: int = BLOCK
    abreast: int = 1


def settled(
    config: RunConfig[Any],
    experiment: Experiment,
    folder: RunFolder | None = None,
    report: Reporter | None = None,
) -> RunConfig[Any]:
    """The configuration with a pace: its own, its folder's, or the one that suits this machine."""
    if config.block and config.abreast:
        return config
    if folder is not None and folder.kept(folder.config_path).exists():
        pace = _stored(folder)
    elif jax.default_backend() != "cpu":
        pace = for_accelerator(Pace(config.block, config.abreast), _dimension(experiment.problem))
        # So few that every device has something to do.
        share = -(-config.sample.samples // len(jax.devices()))
        pace = dataclasses.replace(pace, abreast=min(pace.abreast, share))
    elif _numbers(config, experiment.problem) < WORTH_IT:
        pace = Pace()
    else:
        pace = _suitable(config, experiment, report or Silence())
    return dataclasses.replace(
        config, block=config.block or pace.block, abreast=config.abreast or pace.abreast
    )


def _stored(folder: RunFolder) -> Pace:
    found = folder.read_kept(folder.config_path)
    try:
        return _pace(found)
    except (KeyError, TypeError, ValueError) as error:
        raise RunFolderError(
            f"{folder.config_path} does not say how much is side by side (block, abreast)"
        ) from error


def _pace(found: Any) -> Pace:
    block, abreast = found["block"], found["abreast"]
    if not (type(block) is int and type(abreast) is int and min(block, abreast) > 0):
        raise ValueError
    return Pace(block, abreast)


def _numbers(config: RunConfig[Any], problem: Problem) -> float:
    rollouts = config.sample.samples * config.sizes.train * config.horizon
    return float(rollouts) * _dimension(problem)


def _dimension(problem: Problem) -> int:
    with working_precision(problem):
        form = theta_form(problem)
        return jax.eval_shape(lambda theta: ravel_pytree(problem.start(theta))[0], form).size


def _suitable(config: RunConfig[Any], experiment: Experiment, report: Reporter) -> Pace:
    base, problem = own_folder(), experiment.problem
    if base is None or config.block:
        return Pace()
    with working_precision(problem):
        rule = experiment.create_rule(named_key(config.seed, "rule"))
        thetas = PriorSet.draw(problem, min(BLOCK, config.sizes.prior), config.seed).thetas
        path = base / "paces" / f"{_name(config, problem, rule, thetas)}.json"
    with contextlib.suppress(OSError, RunFolderError, KeyError, TypeError, ValueError):
        return _pace(parse_json(path.read_text(), path))
    report.say("measuring how much to compute side by side on this machine")
    paces = candidates(_dimension(problem), config.sizes.train)
    found = fastest(paces, functools.partial(seconds, problem, rule, thetas))
    with contextlib.suppress(OSError, RunFolderError):
        # Where nothing can be written, it is measured again.
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(dataclasses.asdict(found)))
    report.say(f"{found.block} instances side by side")
    return found


def _name(config: RunConfig[Any], problem: Problem, rule: Rule, thetas: Theta) -> str:
    """What a pace depends on: the machine, and the forms of what is computed, but no seed."""
    leaves = named_leaves("theta", instance(thetas, 0)).items()
    facts = (
        [device.device_kind for device in jax.local_devices()],
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        jax.__version__,
        (config.name, config.rule, type(problem).__name__, str(problem.precision)),
        [(name, leaf.shape, str(leaf.dtype)) for name, leaf in leaves],
        (type(rule).__name__, hyper_of(rule).size),
        config.sizes.train,
    )
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:32]


def for_accelerator(given: Pace, dimension: int) -> Pace:
    """As much at once as there is room for; what is given (not 0) stays."""
    together = max(1, _AT_ONCE // dimension)
    block = given.block or min(BLOCK, 2 ** (together.bit_length() - 1))
    return Pace(block, given.abreast or max(1, min(64, together // block)))


def candidates(dimension: int, instances: int) -> list[Pace]:
    """What is worth trying on a processor, from little to much, no more than there is.

    Small blocks stay in its caches, large ones waste less between products.
    """
    least, *more = (1, 4, 16, 64, 256) if dimension >= _LARGE else (4, 16, 64, 256)
    return [Pace(block) for block in (least, *(b for b in more if b < 2 * instances))]


def fastest(paces: Sequence[Pace], seconds: Callable[[Pace], float], budget: float = 10.0) -> Pace:
    """The fastest one, of those that can be measured within a budget in seconds."""
    began = time.monotonic()
    best, *others = paces
    least = seconds(best)
    for pace in others:
        left = budget - (time.monotonic() - began)
        if _number(pace) * least * _ROUNDS > left:
            break
        taken = seconds(pace)
        if taken < least:
            best, least = pace, taken
    return best


def seconds(problem: Problem, rule: Rule, thetas: Theta, pace: Pace) -> float:
    """What a few iterations take, a rollout; infinite where there is no room for the program."""
    with working_precision(problem):
        some = instance(thetas, jnp.arange(_number(pace)) % count(thetas))
        arguments = (rule, problem, some, (_ITERATIONS,), jnp.zeros(0), (), pace.block)
        roll_out: Any = observe
        program = roll_out.lower(*arguments).compile()
        needed = program.compiled.memory_analysis()
        if needed is not None and needed.temp_size_in_bytes > _ROOM:
            return np.inf
        times: list[float] = []
        while len(times) < _ROUNDS or (sum(times) < _LONG_ENOUGH and len(times) < 100):
            began = time.perf_counter()
            jax.block_until_ready(program(*arguments))
            times.append(time.perf_counter() - began)
    return min(times) / _number(pace)


def _number(pace: Pace) -> int:
    """How many instances are rolled out to measure: full blocks, more than one of small ones."""
    return pace.block * max(1, 16 // pace.block)
