"""Every loader of files that may be a stranger's, each with valid files to begin from."""

import dataclasses
import gzip
import hashlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

import surestep
from support.tiny import PROBLEM, RULE, SPLIT, planned
from surestep import paper
from surestep.auto.arena import Entry
from surestep.auto.choice import Choice
from surestep.auto.choice_file import read_choice, write_choice
from surestep.auto.configure import Config, OwnSettings
from surestep.base.keys import named_key
from surestep.certify.asked import Asked
from surestep.certify.certificate import SCHEMA, Certificate, Statement
from surestep.certify.outcome_files import plain_arrays
from surestep.certify.outcome_plan import OutcomePlan, OutcomeSettings, plan_of_claims
from surestep.certify.outcomes import Outcomes
from surestep.certify.plan import Plan
from surestep.certify.until import UntilOutcomes, UntilPlan, course_of, plan_until
from surestep.evaluate.break_even import training_seconds
from surestep.paper.digits import IdxFile, read_idx
from surestep.problem.draw import working_precision
from surestep.problem.goal import Goal
from surestep.problem.instance_files import read_arrays_of
from surestep.rules import Checked, Coordinatewise, GradientDescent, Newton, Safeguarded
from surestep.rules.base import hyper_of
from surestep.run.charges import Charge, read_charges
from surestep.run.outcomes import OutcomeFolder
from surestep.run.stored import read_plan
from surestep.run.until import read_until_plan
from surestep.run.verify.outcomes import verify_outcomes
from surestep.solver.instance_monitor import InstanceMonitor
from surestep.solver.monitor import Monitor
from surestep.solver.solver import Solver
from surestep.storage.checkpoint import FileCheckpoint
from surestep.storage.mirrored import Kept
from surestep.storage.records import to_json
from surestep.storage.run_folder import RunFolder
from surestep.train.constraint import Constraint
from surestep.train.locate import Located
from surestep.train.sample import Sampled

IDX = IdxFile("few", (2, 3), hashlib.sha256(b"\0\0\x08\2\0\0\0\2\0\0\0\3abcdef").hexdigest())
CHECKPOINT = {"x": np.arange(4.0), "n": np.array(3)}


@dataclasses.dataclass(frozen=True)
class Target:
    """A file's name in a folder, what it may begin as, and the loader that is to survive it."""

    file: str
    kind: str
    """`json`, `arrays`, `npz` or `bytes`: how mutations may take it apart."""
    seeds: list[bytes]
    load: Callable[[Path], Any]
    """Takes the folder."""
    weight: float
    """Share of the inputs; loaders that compute get few."""


def _prior() -> Sampled:
    random = np.random.default_rng(0)
    losses = random.uniform(size=(2, 5))
    return Sampled.given(random.normal(size=(2, 3)), np.ones(2), losses, losses[0], np.zeros(2))


def _plan() -> Plan:
    prior = _prior()
    hypers = np.repeat(np.asarray(hyper_of(RULE))[None], len(prior.hypers), axis=0)
    return planned(dataclasses.replace(prior, hypers=hypers))


def _certificate() -> Certificate:
    statement = Statement("goal", 0.1, 0.2, 0.95, 0.05, "With confidence 95%, so it is.", ["that"],
                          [], {"above": [[0.1, 2.0], [3, 4]]})  # fmt: skip
    estimate = dataclasses.replace(statement, name="paper", estimates=["the mean"])
    ledger = list(_plan().shares)
    hashes, sizes = {"prior": "0" * 64, "train": "1" * 64}, {"prior": 5, "train": 64}
    return Certificate(SCHEMA, "bowl", 10, 0.05, ledger, 1, "a" * 64, "b" * 64, "c" * 64, hashes,
                       sizes, [statement, estimate])  # fmt: skip


def _written(write: Callable[[Path], Any], folder: Path, name: str) -> bytes:
    write(folder)
    return (folder / name).read_bytes()


def _solver(folder: Path) -> list[bytes]:
    with working_precision(PROBLEM):
        learned = Coordinatewise.create(named_key(0, "fuzz"))
    found = []
    for rule in (GradientDescent(1e-3), learned, Safeguarded(learned, GradientDescent(1e-3))):
        probes = jax.tree.map(lambda leaf: leaf[:4], SPLIT.prior.thetas)
        solver = Solver(PROBLEM, rule, 10, Goal(1.0, 1.0), 4, None, None, probes)
        solver.save(folder / "solver.safetensors")
        found.append((folder / "solver.safetensors").read_bytes())
    return found


def _choice(folder: Path) -> list[bytes]:
    with working_precision(PROBLEM):
        learned = Coordinatewise.create(named_key(0, "fuzz"))
        simple = GradientDescent(jax.numpy.asarray(1e-3))
    opponents = {"Newton": Newton(), "gradient descent": GradientDescent(1e-3)}
    entries = (Entry("one", True, 3, 1e-3, 1e-4), Entry("two", False, *3 * (np.inf,)))
    found = []
    for rule in (simple, learned):
        checked = Checked(rule, GradientDescent(1e-3), at=3, tolerance=0.1)
        choice = Choice(checked, opponents, "one (trained)", entries, 3, 10.0, 900, 2.5)
        write_choice(folder / "choice.safetensors", choice)
        found.append((folder / "choice.safetensors").read_bytes())
    return found


def _instances() -> list[bytes]:
    found = []
    for save in (np.savez, np.savez_compressed):
        buffer = io.BytesIO()
        few = jax.tree.map(lambda leaf: np.asarray(leaf)[:3], SPLIT.prior.thetas)
        save(buffer, **few._asdict())
        found.append(buffer.getvalue())
    return found


def _use_certificate(folder: Path) -> None:
    found = Certificate.load(folder / "certificate.json")
    str(found)
    to_json(found)


def _use_monitor(folder: Path) -> None:
    found = Monitor.load(folder / "state.json")
    found = found.fed([0.0, 1.0, 0.5])
    if found.instances is not None:
        found = found.shown(np.zeros((3, len(found.instances.edges))))
    str(found)
    to_json(found)


def _use_config(folder: Path) -> None:
    paper.read_config(RunFolder(folder)).validate()


def _use_status(folder: Path) -> None:
    training_seconds(RunFolder(folder).status())


def _use_result(folder: Path) -> None:
    run = RunFolder(folder)
    run.dataset("locate")
    run.load("locate", Located)


def _use_checkpoint(folder: Path) -> None:
    FileCheckpoint(folder / "locate.partial.safetensors").load(CHECKPOINT)


def _use_prior(folder: Path) -> None:
    RunFolder(folder).load("sample", Sampled)


def _use_idx(folder: Path) -> None:
    read_idx(folder / "few.gz", IDX)


_TABLE = "instance,iteration,loss,minimum\na,0,4,1\na,5,2,1\nb,0,3,0\nb,5,1,0\n"


def _outcomes() -> list[bytes]:
    losses = np.abs(np.random.default_rng(0).normal(size=(4, 3)))
    content = io.BytesIO()
    np.savez(content, losses=losses, minima=np.zeros(4), groups=np.arange(4) // 2)
    return [content.getvalue()]


def _use_outcomes(folder: Path, file: str) -> None:
    Outcomes.of(plain_arrays(folder / file))


def _outcome_plan() -> OutcomePlan:
    claims = ("loss 1 in 5 iterations: 0.9", "goal in 5 iterations")
    return plan_of_claims(OutcomeSettings(claims=claims), 10)


def _use_outcome_plan(folder: Path) -> None:
    place = OutcomeFolder(folder)
    if place.is_one():
        verify_outcomes(place)


def _until_plan() -> UntilPlan:
    asked = Asked.read("loss 1 in 5 iterations: 0.9")
    facts = {"problem": "bowl", "iterations": 5, "above": "", "goal": Goal(1.0, 1.0), "pool": ""}
    facts |= {"seed": 0, "deployed_sample": 0, "solver_sha256": "a" * 64}
    return plan_until(asked, 0.05, (60, 4), 64, **facts)


def _use_until_plan(folder: Path) -> None:
    plan = read_until_plan(folder)
    if plan is not None:
        course_of(plan, UntilOutcomes(np.zeros(100), np.ones(100)))
        assert plan.asked.words


def targets(folder: Path) -> dict[str, Target]:
    """All of them; the valid files are made in a folder."""
    run, facts = RunFolder(folder), Kept(folder / "facts.json")
    own = Config("mine.py", "auto", OwnSettings((1.0,), "/mine.py:mine"), Goal(1.0, 1.0), horizon=5)
    configs = [own, *(paper.preset(name, "tiny") for name in paper.NAMES)]
    located = Located(np.arange(3.0), np.array([0.5, np.nan]), 2, Constraint().assess(60, 60),
                      [Constraint().assess(1, 2)])  # fmt: skip
    status = {"inputs": {"train": "ab"}, "locate": {"state": "done", "seconds": 1.5},
              "made_with": {"environments": [{"jax": "1"}]}}  # fmt: skip
    charges = {"charges": [Charge("run", 0.05, ["ab", "cd"]), Charge("1", 0.02, ["ef"])]}
    checkpoint = FileCheckpoint(folder / "locate.partial.safetensors")
    facts.write('{"steps": 1}')
    facts.write('{"steps": 2}')
    watching = Monitor(0.1, instances=InstanceMonitor.of(np.arange(40.0)[:, None]))
    text = {
        "config": (configs, "config.json", _use_config),
        "status": ([status], "status.json", _use_status),
        "plan": ([_plan()], "plan.json", lambda folder: read_plan(folder / "plan.json")),
        "charges": ([charges], "charges.json", lambda folder: read_charges(RunFolder(folder))),
        "certificate": ([_certificate()], "certificate.json", _use_certificate),
        "monitor": ([Monitor(0.1), watching], "state.json", _use_monitor),
        "until": ([_until_plan()], "plan.json", _use_until_plan),
        "plan of outcomes": ([_outcome_plan()], "plan.json", _use_outcome_plan),
    }
    found = {
        name: Target(file, "json", [to_json(seed).encode() for seed in seeds], load, 12.0)
        for name, (seeds, file, load) in text.items()
    }
    result = _written(lambda f: run.save("locate", located), folder, "locate.safetensors")
    prior = _written(lambda f: run.save("sample", _prior()), folder, "sample.safetensors")
    state = _written(lambda f: checkpoint.save(CHECKPOINT), folder, checkpoint.path.name)
    return found | {
        "copy": Target(facts.copy.name, "bytes", [facts.copy.read_bytes()],
                       lambda folder: Kept(folder / "facts.json").read(), 6.0),
        "result": Target("locate.safetensors", "arrays", [result], _use_result, 6.0),
        "prior": Target("sample.safetensors", "arrays", [prior], _use_prior, 6.0),
        "checkpoint": Target(checkpoint.path.name, "arrays", [state],
                             _use_checkpoint, 6.0),
        "instances": Target("x.npz", "npz", _instances(),
                            lambda folder: read_arrays_of(PROBLEM, folder / "x.npz"), 2.0),
        "outcomes": Target("o.npz", "npz", _outcomes(),
                           lambda folder: _use_outcomes(folder, "o.npz"), 2.0),
        "table": Target("o.csv", "bytes", [_TABLE.encode()],
                        lambda folder: _use_outcomes(folder, "o.csv"), 6.0),
        "digits": Target("few.gz", "bytes", [gzip.compress(b"\0\0\x08\2\0\0\0\2\0\0\0\3abcdef")],
                         _use_idx, 6.0),
        "choice": Target("choice.safetensors", "arrays", _choice(folder),
                         lambda folder: read_choice(folder / "choice.safetensors", PROBLEM), 1.5),
        "solver": Target("solver.safetensors", "arrays", _solver(folder),
                         lambda folder: surestep.load(folder / "solver.safetensors", PROBLEM), 1.5),
    }  # fmt: skip
