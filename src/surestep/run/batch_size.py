"""Batch sizes: measured once on a processor, and remembered there.

A batch size changes how fast a run is, and the last bits of what it observes. So a run keeps the
sizes that it began with, and without a place to remember them there are the same for all.
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

from surestep.base.compilation_cache import own_folder
from surestep.base.errors import RunFolderError
from surestep.base.progress import Reporter, Silence
from surestep.problem import (
    PriorSet,
    Problem,
    Theta,
    count,
    instance,
    named_leaves,
    point_size,
    working_precision,
)
from surestep.rollout.batched import BLOCK
from surestep.rollout.observe import Watch, observe
from surestep.rules.base import Rule, hyper_of
from surestep.run.config import RunConfig
from surestep.storage.files import parse_json, write_text
from surestep.storage.run_folder import RunFolder
from surestep.train import Experiment

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
"""Bytes that a program may need for a batch."""


@dataclasses.dataclass(frozen=True)
class BatchSizes:
    """How many instances, and how many samples, are one batch."""

    block: int = BLOCK
    sample_block: int = 1


def settled(
    config: RunConfig[Any],
    experiment: Experiment,
    folder: RunFolder | None = None,
    report: Reporter | None = None,
) -> RunConfig[Any]:
    """The configuration with batch sizes: its own, its folder's, or what suits this machine."""
    if config.block and config.sample_block:
        return config
    if folder is not None and folder.kept(folder.config_path).exists():
        size = _stored(folder)
    elif jax.default_backend() != "cpu":
        size = for_accelerator(
            BatchSizes(config.block, config.sample_block), point_size(experiment.problem)
        )
        # So few that every device has something to do.
        share = -(-config.sample.samples // len(jax.devices()))
        size = dataclasses.replace(size, sample_block=min(size.sample_block, share))
    elif _numbers(config, experiment.problem) < WORTH_IT:
        size = BatchSizes()
    else:
        size = _suitable(config, experiment, report or Silence())
    return dataclasses.replace(
        config,
        block=config.block or size.block,
        sample_block=config.sample_block or size.sample_block,
    )


def _stored(folder: RunFolder) -> BatchSizes:
    found = folder.stored_config()
    try:
        return _sizes(found)
    except (KeyError, TypeError, ValueError) as error:
        raise RunFolderError(
            f"{folder.config_path} does not say how large batches are (block, sample_block)"
        ) from error


def _sizes(found: Any) -> BatchSizes:
    block, sample_block = found["block"], found["sample_block"]
    if not (type(block) is int and type(sample_block) is int and min(block, sample_block) > 0):
        raise ValueError
    return BatchSizes(block, sample_block)


def _numbers(config: RunConfig[Any], problem: Problem) -> float:
    rollouts = config.sample.samples * config.sizes.train * config.horizon
    return float(rollouts) * point_size(problem)


def _suitable(config: RunConfig[Any], experiment: Experiment, report: Reporter) -> BatchSizes:
    base, problem = own_folder(), experiment.problem
    if base is None or config.block:
        return BatchSizes()
    with working_precision(problem):
        rule = experiment.rule(config.seed)
        thetas = PriorSet.draw(problem, min(BLOCK, config.sizes.prior), config.seed).thetas
        path = base / "batch_sizes" / f"{_name(config, problem, rule, thetas)}.json"
    with contextlib.suppress(OSError, RunFolderError, KeyError, TypeError, ValueError):
        return _sizes(parse_json(path.read_text(), path))
    report.say("measuring which batch size suits this machine")
    sizes = candidates(point_size(problem), config.sizes.train)
    found = fastest(sizes, functools.partial(seconds, problem, rule, thetas))
    with contextlib.suppress(OSError, RunFolderError):
        # Where nothing can be written, it is measured again.
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(dataclasses.asdict(found)))
    report.say(f"{found.block} instances a batch")
    return found


def _name(config: RunConfig[Any], problem: Problem, rule: Rule, thetas: Theta) -> str:
    """What batch sizes depend on: the machine, and the forms of what is computed, but no seed."""
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


def for_accelerator(given: BatchSizes, dimension: int) -> BatchSizes:
    """As much at once as there is room for; what is given (not 0) stays."""
    together = max(1, _AT_ONCE // dimension)
    block = given.block or min(BLOCK, 2 ** (together.bit_length() - 1))
    return BatchSizes(block, given.sample_block or max(1, min(64, together // block)))


def candidates(dimension: int, instances: int) -> list[BatchSizes]:
    """What is worth trying on a processor, from little to much, no more than there is.

    Small blocks stay in its caches, large ones waste less between products.
    """
    least, *more = (1, 4, 16, 64, 256) if dimension >= _LARGE else (4, 16, 64, 256)
    return [BatchSizes(block) for block in (least, *(b for b in more if b < 2 * instances))]


def fastest(
    sizes: Sequence[BatchSizes], seconds: Callable[[BatchSizes], float], budget: float = 10.0
) -> BatchSizes:
    """The fastest one, of those that can be measured within a budget in seconds."""
    began = time.monotonic()
    best, *others = sizes
    least = seconds(best)
    for size in others:
        left = budget - (time.monotonic() - began)
        if _number(size) * least * _ROUNDS > left:
            break
        taken = seconds(size)
        if taken < least:
            best, least = size, taken
    return best


def seconds(problem: Problem, rule: Rule, thetas: Theta, size: BatchSizes) -> float:
    """What a few iterations take, a rollout; infinite where there is no room for the program."""
    with working_precision(problem):
        some = instance(thetas, jnp.arange(_number(size)) % count(thetas))
        no_targets = jnp.zeros((_number(size), 0))
        arguments = (rule, problem, some, no_targets, Watch((_ITERATIONS,)), size.block)
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
    return min(times) / _number(size)


def _number(size: BatchSizes) -> int:
    """How many instances are rolled out to measure: full blocks, more than one of small ones."""
    return size.block * max(1, 16 // size.block)
