"""The file of a solver: one safetensors file, arrays and a header of JSON.

Nothing in it is code. The rule is data (see `rule_data`), the problem is a signature that the
reader's own problem is compared with, and what the header announces is checked before an array is
read.
"""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from surestep.base.errors import RunFolderError, SolverFileError
from surestep.base.machine import provenance
from surestep.certify import Certificate, upgraded
from surestep.problem import Goal, Problem, Theta, named_leaves, theta_form, working_precision
from surestep.rules.base import Rule, hyper_of, require_fit, solver_fingerprint
from surestep.solver.familiar import FEATURES, Familiar
from surestep.solver.posterior import Posterior
from surestep.solver.rule_data import pack, references, unpack
from surestep.solver.signature import Signature
from surestep.storage.arrays import Announced, read_arrays, write_arrays
from surestep.storage.records import from_plain, to_plain
from surestep.train import hyper_at

KIND = "surestep solver"
FORMAT = 1
_HYPERS, _LOG_WEIGHTS, _PROBE = "posterior/hypers", "posterior/log_weights", "probe/"
_FAMILIAR = "familiar/"


@dataclasses.dataclass(frozen=True)
class Stored:
    """What a file holds of a solver: everything but its problem."""

    rule: Rule
    horizon: int
    goal: Goal
    block: int
    certificate: Certificate | None
    posterior: Posterior | None
    probes: Theta
    """A few stacked instances on which the problem is recognised."""
    familiar: Familiar | None = None
    """What instances usually look like; files of earlier versions do not know."""


@dataclasses.dataclass(frozen=True)
class _Facts:
    """The header."""

    signature: Signature
    horizon: int
    goal: Goal
    block: int
    certificate: Certificate | None
    rule: Any
    rule_sha256: str
    posterior: list[int] | None
    """How many samples, and of what size."""
    versions: dict[str, str]


def write_solver(path: Path, problem: Problem, stored: Stored) -> None:
    """Write a solver's file atomically."""
    packed = pack(stored.rule)
    arrays, posterior = dict(packed.arrays), stored.posterior
    if posterior is not None:
        arrays |= {_HYPERS: posterior.hypers, _LOG_WEIGHTS: posterior.log_weights}
    if stored.familiar is not None:
        arrays |= {_FAMILIAR + name: array for name, array in vars(stored.familiar).items()}
    probes = named_leaves("theta", stored.probes)
    arrays |= {_PROBE + name: np.asarray(leaf) for name, leaf in probes.items()}
    facts = _Facts(
        signature=Signature.of(problem, stored.probes),
        horizon=stored.horizon,
        goal=stored.goal,
        block=stored.block,
        certificate=stored.certificate,
        rule=packed.data,
        rule_sha256=solver_fingerprint(stored.rule),
        posterior=None if posterior is None else list(posterior.hypers.shape),
        versions=provenance(),
    )
    text = json.dumps(to_plain(facts), sort_keys=True, allow_nan=False)
    write_arrays(path, arrays, {"kind": KIND, "format": str(FORMAT), "facts": text})


def read_solver(path: Path, problem: Problem, template: Rule | None = None) -> Stored:
    """Read a solver's file for a problem, or say why it cannot be used."""
    seen: list[_Facts] = []

    def inspect(metadata: dict[str, Any], announced: dict[str, Announced]) -> None:
        seen.append(_facts(path, metadata))
        seen[0].signature.require_form(problem, str(path))
        _require_announced(path, seen[0], announced)

    try:
        arrays, _ = read_arrays(path, inspect)
    except SolverFileError:
        raise
    except RunFolderError as error:
        raise SolverFileError(f"{error} (it is no solver's file, or not all of one)") from error
    facts = seen[0]
    with working_precision(problem):
        form = theta_form(problem)
        leaves = [jnp.asarray(arrays[_PROBE + name]) for name in named_leaves("theta", form)]
        probes = jax.tree.unflatten(jax.tree.structure(form), leaves)
        facts.signature.require_losses(problem, probes, str(path))
        rule = unpack(facts.rule, arrays, str(path), template)
        _require_rule(path, facts, rule)
        require_fit(rule, problem)
        posterior = None
        if facts.posterior is not None:
            posterior = Posterior(arrays[_HYPERS], arrays[_LOG_WEIGHTS])
            _require_posterior(path, facts, rule, posterior)
    return Stored(
        *(rule, facts.horizon, facts.goal, facts.block, facts.certificate, posterior, probes),
        _familiar(path, arrays),
    )


def _familiar(path: Path, arrays: dict[str, np.ndarray]) -> Familiar | None:
    """What instances usually look like, if the file says."""
    if _FAMILIAR + "sample" not in arrays:
        return None
    names = (field.name for field in dataclasses.fields(Familiar))
    found = Familiar(**{name: arrays[_FAMILIAR + name] for name in names})
    if not np.all(np.isfinite(found.centre)) or not np.all(found.scale > 0):
        raise SolverFileError(f"{path}: theta cannot be centred and scaled by what it says")
    return found


def _facts(path: Path, metadata: Any) -> _Facts:
    if not isinstance(metadata, dict) or metadata.get("kind") != KIND:
        raise SolverFileError(f"{path} is no solver's file")
    if metadata.get("format") != str(FORMAT):
        raise SolverFileError(
            f"{path} has the format {metadata.get('format')}; this version of surestep reads "
            f"format {FORMAT}"
        )
    try:
        plain = json.loads(metadata["facts"])
        if isinstance(plain, dict):
            plain |= {"certificate": upgraded(plain.get("certificate"))}
        return from_plain(_Facts, plain, "header")
    except (RunFolderError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise SolverFileError(f"the header of {path} cannot be used: {error}") from error


def _require_announced(path: Path, facts: _Facts, announced: dict[str, Announced]) -> None:
    try:
        wanted = references(facts.rule)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise SolverFileError(f"the rule in {path} cannot be read: {error!r}") from error
    if facts.posterior is not None:
        samples = facts.posterior[0] if len(facts.posterior) == 2 else 0
        kind = announced.get(_HYPERS, ("float64", ()))[0]
        # Hypers are kept in the precision they were found in.
        known = kind if kind in ("float32", "float64") else "float64"
        wanted[_HYPERS] = (known, tuple(facts.posterior))
        wanted[_LOG_WEIGHTS] = ("float64", (samples,))
        if samples < 1:
            raise SolverFileError(f"{path} announces a posterior of shape {facts.posterior}")
    number = len(facts.signature.losses)
    for part in facts.signature.theta:
        wanted[_PROBE + part.name] = (part.dtype, (number, *part.shape))
    sample = announced.get(_FAMILIAR + "sample")
    if sample is not None:
        size = sum(math.prod(part.shape) for part in facts.signature.theta)
        rows = sample[1][0] if sample[1] else 0
        wanted[_FAMILIAR + "sample"] = ("float64", (rows, FEATURES))
        wanted |= {_FAMILIAR + name: ("float64", (size,)) for name in ("centre", "scale")}
    for name in sorted(wanted.keys() | announced.keys()):
        if wanted.get(name) != announced.get(name):
            raise SolverFileError(
                f"{path}: the array {name} should be {_shown(wanted.get(name))}, "
                f"found {_shown(announced.get(name))}"
            )


def _shown(announced: Announced | None) -> str:
    return "absent" if announced is None else f"{announced[0]} {announced[1]}"


def _require_rule(path: Path, facts: _Facts, rule: Rule) -> None:
    found = solver_fingerprint(rule)
    if found != facts.rule_sha256:
        raise SolverFileError(
            f"the rule in {path} is not the one that was saved: wanted {facts.rule_sha256[:16]}, "
            f"found {found[:16]}"
        )
    certificate = facts.certificate
    if certificate is None:
        return
    if certificate.solver_sha256 != found:
        raise SolverFileError(
            f"the certificate in {path} is of another rule: it names "
            f"{certificate.solver_sha256[:16]}, the rule is {found[:16]}"
        )
    if certificate.horizon != facts.horizon:
        raise SolverFileError(
            f"the certificate in {path} is about {certificate.horizon} iterations, the solver "
            f"makes {facts.horizon}"
        )


def _require_posterior(path: Path, facts: _Facts, rule: Rule, posterior: Posterior) -> None:
    deployed = np.asarray(hyper_of(rule))
    if posterior.hypers.shape[1] != deployed.size:
        raise SolverFileError(
            f"the posterior in {path} has samples of {posterior.hypers.shape[1]} numbers, the rule "
            f"has {deployed.size}"
        )
    if not np.any(np.isfinite(posterior.log_weights)) or np.any(np.isnan(posterior.log_weights)):
        raise SolverFileError(f"the weights of the posterior in {path} are no weights")
    if facts.certificate is None:
        return
    index = facts.certificate.deployed_sample
    if not 0 <= index < len(posterior.hypers):
        raise SolverFileError(f"the certificate in {path} names the sample {index}: there is none")
    if not np.array_equal(np.asarray(hyper_at(rule, posterior.hypers[index])), deployed):
        raise SolverFileError(
            f"the posterior in {path} is of another rule: sample {index} should be the deployed one"
        )
