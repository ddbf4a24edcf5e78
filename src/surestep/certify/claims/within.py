"""The claim that a deadline needs: after how many iterations instances are as close as wanted."""

import dataclasses
from typing import Any, ClassVar, Literal

import numpy as np
from jaxtyping import Float

from surestep.bounds.family import normalised
from surestep.bounds.uniform import quantile_uppers
from surestep.certify.certificate import Statement, percent
from surestep.certify.claims.base import SLACK, Asserted, Basis, Claim, Terms, Truth
from surestep.certify.claims.shift import falsely_moved, with_shift
from surestep.certify.evidence import reached_in
from surestep.certify.targets import GRADIENTS, ITERATIONS, Target

_UNITS = {"iterations": (ITERATIONS, 0.7), "gradients": (GRADIENTS, 0.3)}
"""The units that are certified, and which part of the share pays for each."""

_MAIN = 0.5
"""The part of a unit's share that the headline is paid with; the others share the rest."""


@dataclasses.dataclass(frozen=True)
class Within(Claim):
    """After how many iterations, and gradient evaluations, shares of instances reach targets."""

    weight: ClassVar[float] = 3.0
    targets: tuple[int, ...]
    """Which of the plan's targets."""
    shares: tuple[float, ...]
    """Of new instances."""
    headline: int
    """The target that the sentence is about."""
    share: float
    """The share of new instances that it is about."""
    kind: Literal["within"] = "within"

    def statement(self, basis: Basis) -> Statement:
        """Order statistics of when targets were reached, for all targets and shares at once."""
        terms, held = basis.terms, np.exp(normalised(basis.log_posterior)) > 0
        details: dict[str, Any] = {
            "targets": [_described(terms.targets[t], terms) for t in self.targets],
        }
        points: dict[str, dict[float, list[float]]] = {}
        posteriors: dict[str, dict[float, list[float]]] = {}
        for name, (unit, part) in _UNITS.items():
            point, drawn = {}, {}
            for share in self.shares:
                pairs = [self._certified(basis, unit, t, share, part) for t in self.targets]
                # A drawn rule needs at most as many as any that can be drawn.
                point[share] = [float(pair[basis.deployed_sample]) for pair in pairs]
                drawn[share] = [float(pair[held].max()) for pair in pairs]
            details[name], details[f"{name}_posterior"] = _plain(point), _plain(drawn)
            points[name], posteriors[name] = point, drawn
        share, at = self._shown(points["iterations"])
        details["headline"] = {"target": at, "share": share}
        value, gradients = (points[unit][share][at] for unit in ("iterations", "gradients"))
        sentence = self.sentence(self.targets[at], share, value, gradients, terms)
        posterior = posteriors["iterations"][share][at]
        stated = self._stated(basis, value, posterior, sentence, **details)
        # Those who are late are the rest of the share.
        return with_shift(stated, 1 - share if np.isfinite(value) else 1.0)

    def _shown(self, point: dict[float, list[float]]) -> tuple[float, int]:
        """Which share and target the sentence is about.

        What was planned, if it is certified. All pairs hold at once, so another may be shown: the
        largest share of the same target, or else of the target that takes longest.
        """
        planned = self.targets.index(self.headline)
        for share in (self.share, *sorted(point, reverse=True)):
            if np.isfinite(point[share][planned]):
                return share, planned
        for share in sorted(point, reverse=True):
            sure = [at for at, value in enumerate(point[share]) if np.isfinite(value)]
            if sure:
                return share, max(sure, key=lambda at, row=point[share]: row[at])
        return self.share, planned

    def sentence(
        self, target: int, of_instances: float, iterations: float, gradients: float, terms: Terms
    ) -> str:
        """The headline."""
        words = terms.targets[target].words(terms.above)
        share = f"at least {percent(of_instances)} of new instances {words}"
        if not np.isfinite(iterations):
            return (
                f"no number of iterations up to {terms.horizon} is certified after which {share}."
            )
        stay = f", and stay there until iteration {terms.horizon}"
        cost = f" (and {gradients:.0f} gradient evaluations)" if np.isfinite(gradients) else ""
        return (
            f"{share} after {iterations:.0f} iterations of the deployed rule{cost}"
            f"{stay if iterations < terms.horizon else ''} (details: {len(self.targets)} "
            f"accuracies and {len(self.shares)} shares, at once)."
        )

    def _certified(
        self, basis: Basis, unit: int, target: int, share: float, part: float
    ) -> Float[np.ndarray, " sample"]:
        """For every sample, when the share has reached the target; infinite where none is sure."""
        pairs = len(self.targets) * len(self.shares)
        weight = (
            _MAIN
            if (target, share) == (self.headline, self.share)
            else (1 - _MAIN) / max(pairs - 1, 1)
        )
        spent = part * weight * basis.terms.ledger.of(self.name)
        reached = reached_in(basis.evidence.reach, unit, target)
        return quantile_uppers(reached, share, np.array(basis.terms.log_prior), spent)

    @property
    def headline_part(self) -> float:
        """The part of the claim's share that pays for the iterations of its sentence."""
        return _UNITS["iterations"][1] * _MAIN

    def says_something(self, statement: Statement) -> bool:
        """Whether anything is certified for any share."""
        found = statement.details["iterations"].values()
        return any(one is not None for row in found for one in row)

    def exact(self, truth: Truth) -> np.ndarray:
        """Nothing: statements are compared with the distribution itself."""
        return np.zeros(len(truth.table.losses))

    def judge(self, asserted: Asserted, exact: np.ndarray, truth: Truth) -> tuple[bool, float]:
        """Whether fewer instances than promised have reached a target in time."""
        del exact
        alone = np.eye(len(asserted.posterior))[asserted.deployed_sample]
        wrong = False
        for name, (unit, _) in _UNITS.items():
            for key, weights in ((name, alone), (f"{name}_posterior", asserted.posterior)):
                wrong |= self._false(asserted.statement.details[key], unit, weights, truth)
        shown = asserted.statement.details["headline"]
        share, target = shown["share"], self.targets[shown["target"]]
        there = reached_in(truth.table.reach, ITERATIONS, target)[asserted.deployed_sample]
        late = (there > asserted.statement.value).astype(float)
        wrong |= falsely_moved(asserted.statement, late, truth.chances)
        order = np.argsort(there)
        needed = there[order][np.searchsorted(np.cumsum(truth.chances[order]), share - SLACK)]
        return wrong, float(asserted.statement.value - needed)

    def _false(
        self, table: dict[str, list[float | None]], unit: int, weights: np.ndarray, truth: Truth
    ) -> bool:
        for share, row in table.items():
            for target, needed in zip(self.targets, row, strict=True):
                if needed is None:
                    continue
                there = reached_in(truth.table.reach, unit, target) <= needed
                if weights @ truth.mean(there) < float(share) - SLACK:
                    return True
        return False


def _described(target: Target, terms: Terms) -> dict[str, Any]:
    return {"kind": target.kind, "value": target.value, "words": target.words(terms.above)}


def _plain(table: dict[float, list[float]]) -> dict[str, list[float | None]]:
    """By share; nothing where nothing is certified."""
    return {
        f"{share:g}": [value if np.isfinite(value) else None for value in row]
        for share, row in table.items()
    }
