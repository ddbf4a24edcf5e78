"""Certificates beyond a run's own: of a trained rule on fresh data, and of classical rules.

Fresh instances must be fresh: instances that trained the rule or chose the prior are refused, and
instances that an earlier certificate was computed from are charged to the same budget.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from surestep.base.errors import ConfigurationError, RunFolderError
from surestep.base.machine import provenance
from surestep.base.progress import Reporter
from surestep.certify.certificate import Certificate
from surestep.certify.gather import certify
from surestep.certify.plan import Plan
from surestep.certify.planning import CertifySettings, choose_opponents, plan_certificate, plan_run
from surestep.certify.statements import issue, make_certificate
from surestep.problem.base import Problem, StockedProblem, Theta
from surestep.problem.contract import check_problem
from surestep.problem.datasets import DataSet, PriorSet, Split, StreamedTrainSet, TrainSet
from surestep.problem.draw import DrawnInChunks, working_precision
from surestep.problem.form import as_instances, named_leaves, theta_form
from surestep.problem.streamed import ReadInChunks, chunks, open_arrays
from surestep.rollout.tiles import Crew
from surestep.rules.base import Rule, hyper_of, require_fit, solver_fingerprint
from surestep.run.config import RunConfig
from surestep.storage.arrays import Announced, read_arrays, write_arrays
from surestep.storage.mirrored import Kept
from surestep.storage.npz import Form
from surestep.storage.records import from_plain, to_json
from surestep.storage.run_folder import RunFolder, axes
from surestep.train.experiment import Experiment
from surestep.train.sample import Sampled
from surestep.train.task import Task

_INSTANCES = "instances.safetensors"
DRAWN = "surestep instances, drawn"
_CHOSEN_BY = "chosen_by"
OWN = "run"
"""The name of a run's own certificate among the charges."""
MOST_CHARGED = 2_000_000
"""How many instances can be charged for: the list of them is read as a whole."""


@dataclasses.dataclass(frozen=True)
class Charge:
    """A certificate and the instances that its epsilon was spent on."""

    certificate: str
    epsilon: float
    instances: list[str]
    seed: int | None = None
    """What they were drawn by, if they were."""


def charge(folder: RunFolder, certificate: str, epsilon: float, train: TrainSet) -> None:
    """Note that a certificate has been computed from these instances; once is enough."""
    charges = read_charges(folder)
    if all(entry.certificate != certificate for entry in charges):
        charges.append(Charge(certificate, epsilon, train.hashes, train.seed))
        folder.kept(folder.charges_path).write(to_json({"charges": charges}))


def read_charges(folder: RunFolder) -> list[Charge]:
    """All certificates that a folder's solver has been given."""
    path = folder.charges_path
    if not folder.kept(path).exists():
        return []
    found = from_plain(dict[str, list[Charge]], folder.read_kept(path), path.name)
    if set(found) != {"charges"}:
        raise RunFolderError(f"{path} is damaged: it should hold charges, and nothing else")
    return found["charges"]


def certify_again(
    folder: RunFolder,
    config: RunConfig[Any],
    experiment: Experiment,
    train: TrainSet,
    epsilon: float,
    report: Reporter | None = None,
    deployed: bool = False,
    crew: Crew | None = None,
) -> tuple[Certificate, Path]:
    """Certify a run's trained rule on other instances, without training anything.

    With `deployed` the rule that the run deployed is certified alone, as the only sample of its
    prior; otherwise all samples are rolled out, and the instances choose again among them.
    A certificate that was interrupted is gone on with, and charged once. Returns the certificate
    and the folder it was written to, inside the run's own.
    """
    if not folder.has("sample"):
        raise RunFolderError(f"{folder.path} has no trained rule yet: finish the run first")
    charges = read_charges(folder)
    if all(entry.certificate != OWN for entry in charges):
        # Its own certificate comes first: what it costs must be known to all later ones.
        raise RunFolderError(
            f"{folder.path} has no certificate of its own yet: finish the run first"
        )
    if sum(len(entry.instances) for entry in charges) + train.size > MOST_CHARGED:
        raise ConfigurationError(
            f"a run can be certified on {MOST_CHARGED} instances in all, and no more: take fewer"
        )
    prior = folder.load("sample", Sampled)
    split = Split.draw(experiment.problem, config.sizes, config.seed)
    if deployed:
        prior = prior.only(deployed_sample(folder))
    require_fresh(split, train, deployed, recorded_hashes(folder))
    fresh = train.hashes
    task = config.task(experiment)
    settings = dataclasses.replace(config.certify, epsilon=epsilon)

    def planned(before: list[Charge]) -> Plan:
        spent = spent_on(fresh, before, train.seed)
        return plan_run(settings, task, experiment, prior, split.prior, train.size, spent)

    plan, name = planned(charges), str(len(charges))
    for begun in _unfinished(folder, charges, fresh, epsilon):
        # One that goes on is charged what it was charged when it began. Another plan (of all
        # samples, of the deployed one alone) is another certificate.
        same = planned(charges[: charges.index(begun)])
        plan_then = Kept(folder.path / "certificates" / begun.certificate / "plan.json")
        if plan_then.read() == to_json(same):
            plan, name = same, begun.certificate
            break
    place = folder.path / "certificates" / name
    # Charged before the instances are looked at: an interrupted certificate has seen them too.
    Kept(place / "plan.json").write(to_json(plan))
    write_instances(place, train)
    charge(folder, place.name, epsilon, train)
    opponents = choose_opponents(settings, experiment)
    rule = experiment.rule(config.seed)
    results = RunFolder(place)
    results.mark("made_with", environments=[provenance()])
    checkpoint = results.checkpoint("certify")
    found = certify(plan, task, rule, prior, opponents, train, checkpoint, report, crew)
    chosen = experiment.rule_at(config.seed, prior.hypers[found.deployed_sample])
    document = issue(config.name, plan, chosen, found, dataclasses.replace(split, train=train))
    results.save("certify", found)
    Kept(place / "certificate.json").write(to_json(document))
    return document, place


def deployed_sample(folder: RunFolder) -> int:
    """Which sample a run has deployed."""
    if not folder.kept(folder.certificate_path).exists():
        raise RunFolderError(f"{folder.path} has no deployed rule yet: finish the run first")
    folder.kept(folder.certificate_path).mend()
    return Certificate.load(folder.certificate_path).deployed_sample


def spent_on(instances: list[str], charges: list[Charge], seed: int | None = None) -> float:
    """The epsilon that certificates have cost which saw any of these instances.

    Those that were drawn by the same seed have, even if on another kind of machine, where the last
    bits of an instance are others.
    """
    seen = set(instances)
    again = (c for c in charges if seen & set(c.instances) or (seed is not None and c.seed == seed))
    return sum(c.epsilon for c in again)


def write_instances(place: Path, train: TrainSet) -> None:
    """Keep the instances of a certificate beside it, so that it can be verified.

    Of those that are drawn when they are needed, the key is kept; those that lie in files larger
    than memory stay there.
    """
    source = train.thetas
    if isinstance(source, DrawnInChunks):
        facts = {"kind": DRAWN, "size": str(source.size)}
        write_arrays(
            place / _INSTANCES, {"key": np.asarray(jax.random.key_data(source.key))}, facts
        )
    elif not isinstance(train, StreamedTrainSet):
        leaves = named_leaves("theta", source)
        arrays = {name: np.asarray(leaf) for name, leaf in leaves.items()}
        write_arrays(place / _INSTANCES, arrays, {"kind": "surestep instances"})


def stored_instances(problem: Problem, place: Path, size: int) -> TrainSet | None:
    """The `size` instances that a certificate was computed from; None if they lie elsewhere."""
    path = place / _INSTANCES
    if not path.exists():
        return None
    form = theta_form(problem)
    wanted = {name: (str(leaf.dtype), leaf.shape) for name, leaf in
              named_leaves("theta", form).items()}  # fmt: skip

    def inspect(metadata: dict[str, Any], announced: dict[str, Announced]) -> None:
        if metadata.get("kind") == DRAWN:
            if announced != {"key": ("uint32", (2,))}:
                raise RunFolderError(f"{path} should hold a key, and nothing else")
            return
        found = {name: (kind, shape[1:]) for name, (kind, shape) in announced.items()}
        if found != wanted or len({shape[:1] for _, shape in announced.values()}) != 1:
            raise RunFolderError(f"{path} holds no instances of this problem")
        if any(shape[:1] != (size,) for _, shape in announced.values()):
            raise RunFolderError(f"{path} holds other instances than it should")

    arrays, metadata = read_arrays(path, inspect)
    with working_precision(problem):
        if metadata.get("kind") == DRAWN:
            return StreamedTrainSet(_drawn(problem, path, arrays["key"], metadata, size))
        leaves = [jnp.asarray(arrays[name]) for name in wanted]
        return TrainSet(jax.tree.unflatten(jax.tree.structure(form), leaves))


def _drawn(
    problem: Problem, path: Path, key: np.ndarray, metadata: Mapping[str, Any], size: int
) -> DrawnInChunks:
    # Compared, not believed: what is drawn takes time and memory.
    if metadata.get("size") != str(size):
        raise RunFolderError(f"{path} does not say how its {size} instances were drawn")
    return DrawnInChunks(problem, size, jax.random.wrap_key_data(jnp.asarray(key)))


def require_fresh(
    split: Split,
    train: TrainSet,
    deployed: bool = False,
    recorded: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Refuse instances that are there twice, or that the rule was chosen by.

    `recorded` are hashes that the run's sets had where it was made: on another kind of machine, the
    last bits of what is drawn are others. (Those of a third kind, in a file, are not known.)
    """
    fresh, size = set(train.hashes), train.size
    if len(fresh) < size:
        raise ConfigurationError(
            f"only {len(fresh)} of the {size} instances are different: repeating an instance "
            "tells nothing new, and would be counted as if it did"
        )
    used: dict[str, DataSet] = {"prior": split.prior, "validation": split.validation}
    if deployed:
        # Which sample is deployed was chosen by the train set.
        used["train"] = split.train
    for name, data in used.items():
        known = len(fresh & {*data.hashes, *(recorded or {}).get(name, ())})
        if known:
            raise ConfigurationError(
                f"{known} of the {size} instances are in the run's {name} set: what a rule "
                "was chosen by cannot certify it"
            )
    if deployed and train.seed is not None and train.seed == split.train.seed:
        raise ConfigurationError(
            f"the seed {train.seed} has drawn the run's train set: what a rule was chosen by "
            "cannot certify it"
        )


def record_hashes(folder: RunFolder, split: Split) -> None:
    """Note by which instances the rule is chosen: elsewhere they would be drawn with other bits.

    Those of the train set are charged.
    """
    if not folder.has(_CHOSEN_BY):
        sets = (split.prior, split.validation)
        folder.save(_CHOSEN_BY, _ChosenBy(*(_numbers(data.hashes) for data in sets)))


def recorded_hashes(folder: RunFolder) -> dict[str, list[str]]:
    """The hashes of a run's sets where it was made."""
    own = (entry.instances for entry in read_charges(folder) if entry.certificate == OWN)
    found = {"train": next(own, [])}
    if folder.has(_CHOSEN_BY):
        chosen = folder.load(_CHOSEN_BY, _ChosenBy)
        for field in dataclasses.fields(chosen):
            found[field.name] = [f"{number:016x}" for number in getattr(chosen, field.name)]
    return found


@dataclasses.dataclass(frozen=True)
class _ChosenBy:
    """The hashes of the instances that the rule was chosen by, as numbers."""

    prior: np.ndarray = dataclasses.field(metadata=axes("prior"))
    validation: np.ndarray = dataclasses.field(metadata=axes("validation"))


def _numbers(hashes: Sequence[str]) -> np.ndarray:
    return np.array([int(text, 16) for text in hashes], np.uint64)


def _unfinished(
    folder: RunFolder, charges: list[Charge], instances: list[str], epsilon: float
) -> Iterator[Charge]:
    """The charges of certificates on exactly these instances that nobody has seen yet."""
    for entry in charges:
        place = folder.path / "certificates" / entry.certificate
        # In the same order, because what was observed already is kept in that order.
        same = entry.instances == instances and entry.epsilon == epsilon
        if same and (place / "plan.json").exists() and not (place / "certificate.json").exists():
            yield entry


def certify_rule(
    name: str,
    rule: Rule,
    task: Task,
    opponents: Mapping[str, Rule],
    prior_set: PriorSet,
    train: TrainSet,
    settings: CertifySettings,
    goal_second_moment: float | None = None,
) -> Certificate:
    """Certify a rule that was not learned, by the same path: a prior of one sample.

    The prior set only fixes what is certified (tolerances, constants).
    """
    require_fit(rule, task.problem)
    with working_precision(task.problem):
        hyper = np.asarray(hyper_of(rule))
    losses = task.losses(rule, prior_set)[:, 0]
    alone = Sampled.given(
        hyper[None], np.ones(1), losses[None], task.thresholds(prior_set), np.zeros(1)
    )
    plan = plan_certificate(
        settings,
        task.horizon,
        alone,
        task.start_losses(prior_set),
        train.size,
        list(opponents),
        goal_second_moment,
        statistics=list(task.statistics),
        nonnegative=task.problem.nonnegative,
    )
    found = certify(plan, task, rule, alone, opponents, train)
    document = make_certificate(
        name,
        plan,
        solver_fingerprint(rule),
        found,
        {"prior": prior_set.size, "train": train.size},
        {"prior": prior_set.sha256, "train": train.sha256},
    )
    # The paper's bound would plug in a success probability that nobody estimated.
    sure = [statement for statement in document.statements if statement.rigorous]
    return dataclasses.replace(document, statements=sure)


def fresh_instances(problem: Problem, wanted: str, size: int) -> TrainSet:
    """Instances drawn by a seed, or read from a file."""
    if not (wanted.isascii() and wanted.isdigit()):
        return read_instances(problem, Path(wanted))
    if isinstance(problem, StockedProblem):
        raise ConfigurationError(
            "the instances of this problem are data, which were dealt out when the run began: "
            "give an .npz file of new ones instead of a seed"
        )
    if int(wanted) >= 2**31:
        raise ConfigurationError(f"a seed must be below 2^31, not {wanted}")
    return TrainSet.draw(problem, size, int(wanted))


def read_instances(problem: Problem, path: Path, block: int = 64) -> TrainSet:
    """Instances from an .npz file whose arrays are named like the parts of the problem's theta.

    Or from .npy files: a single one, if theta is one array, or a folder of them with those names.
    They are read a part at a time, when it is needed, so they may be larger than memory.
    Every instance is tried at the problem's start, in batches of `block`.
    """
    arrays = read_arrays_of(problem, path)
    if path.suffix == ".npz":
        train = TrainSet(as_instances(problem, arrays))
    else:
        train = StreamedTrainSet(ReadInChunks(problem, arrays))
    with working_precision(problem):
        for number, part in enumerate(train.parts()):
            check_problem(problem, part, block, moving=number == 0)
    return train


def read_arrays_of(problem: Problem, path: Path) -> Theta:
    """The same as they are in the file: nothing is converted, nothing is computed.

    What the file announces is compared with the problem's theta before an array is read.
    """
    template = theta_form(problem)
    wanted = named_leaves("theta", template)

    def inspect(announced: dict[str, Form]) -> None:
        _require_form(path, wanted, announced)

    arrays = open_arrays(path, list(wanted), inspect)
    for name, leaf in wanted.items():
        if not all(np.all(np.isfinite(chunk)) for chunk in chunks(arrays[name])):
            raise ConfigurationError(f"{name} in {path} holds numbers that are not finite")
        whole = jnp.issubdtype(leaf.dtype, jnp.integer)
        if whole and not all(_whole(chunk, leaf.dtype) for chunk in chunks(arrays[name])):
            raise ConfigurationError(
                f"{name} in {path} must hold whole numbers that {leaf.dtype} can hold, not "
                f"{arrays[name].dtype}"
            )
    return jax.tree.unflatten(jax.tree.structure(template), [arrays[name] for name in wanted])


def _require_form(path: Path, wanted: Mapping[str, Any], announced: Mapping[str, Form]) -> None:
    if set(announced) != set(wanted):
        raise ConfigurationError(
            f"{path} must hold the arrays {', '.join(sorted(wanted))}, not "
            f"{', '.join(sorted(announced))[:1000]}"
        )
    for name, leaf in wanted.items():
        shape = announced[name][1]
        if shape[1:] != leaf.shape or not shape:
            raise ConfigurationError(
                f"{name} in {path} must have the shape (instances, {str(leaf.shape)[1:]}, not "
                f"{shape}"
            )
    sizes = {shape[0] for _, shape in announced.values()}
    if len(sizes) != 1 or 0 in sizes:
        raise ConfigurationError(f"the arrays in {path} must have equally many instances")


def _whole(array: np.ndarray, kind: Any) -> bool:
    same = np.issubdtype(array.dtype, np.integer)
    return bool(same and np.array_equal(array.astype(kind), array))
