"""Charges: which certificates have spent epsilon on which instances, and which are fresh."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from surestep.base.errors import ConfigurationError, RunFolderError
from surestep.problem import DataSet, SealedSplit, StreamedTrainSet, TrainSet
from surestep.problem.base import concatenated
from surestep.problem.recorded import equal_rows
from surestep.storage.records import from_plain, to_json
from surestep.storage.run_folder import RunFolder, axes

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


def spent_on(instances: list[str], charges: list[Charge]) -> float:
    """The epsilon that certificates have cost which saw any of these instances.

    Of instances that are drawn nobody has seen any: another plan draws others.
    """
    seen = set(instances)
    return sum(c.epsilon for c in charges if seen & set(c.instances))


def joint_epsilon(charges: list[Charge]) -> float:
    """The probability with which any of these certificates may be false."""
    return sum(c.epsilon for c in charges)


def require_fresh(
    used: Mapping[str, DataSet],
    train: TrainSet,
    recorded: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Refuse given instances that are there twice, or that are in the sets that chose the rule.

    `recorded` are hashes that the run's sets had where it was made: on another kind of machine, the
    last bits of what is drawn are others. (Those of a third kind, in a file, are not known.)
    """
    fresh, size = set(train.hashes), train.size
    if len(fresh) < size:
        raise ConfigurationError(
            f"only {len(fresh)} of the {size} instances are different: repeating an instance "
            "tells nothing new, and would be counted as if it did"
        )
    from_file = not isinstance(train, StreamedTrainSet)
    if from_file and (alike := size - (int(equal_rows(train.thetas).max()) + 1)):
        raise ConfigurationError(
            f"{alike} of the {size} instances are equal to others but for rounding: a file with "
            "copies is no set of independent draws, so keep one of each"
        )
    for name, data in used.items():
        known = len(fresh & {*data.hashes, *(recorded or {}).get(name, ())})
        if known:
            raise ConfigurationError(
                f"{known} of the {size} instances are in the run's {name} set: what a rule "
                "was chosen by cannot certify it"
            )
        if from_file and (alike := _alike(data, train)):
            raise ConfigurationError(
                f"{alike} of the {size} instances are, but for rounding, in the run's {name} set: "
                "what a rule was chosen by cannot certify it"
            )


def record_hashes(folder: RunFolder, split: SealedSplit) -> None:
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


def _alike(data: DataSet, train: TrainSet) -> int:
    """How many instances of a file are equal, but for rounding, to one of a set of the run."""
    if isinstance(data, StreamedTrainSet):
        return 0  # to the bit alone: it is not in memory
    labels = equal_rows(concatenated([data.thetas, train.thetas]))
    return int(np.isin(labels[data.size :], labels[: data.size]).sum())
