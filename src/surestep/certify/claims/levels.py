"""The claim about losses over the iterations: pairs, quantiles and first hits."""

import dataclasses
from typing import ClassVar, Literal

import numpy as np
from jaxtyping import Float

from surestep.bounds.family import normalised
from surestep.bounds.uniform import quantile_uppers
from surestep.certify.certificate import Statement, percent, rounded_up
from surestep.certify.claims.base import SLACK, Asserted, Basis, BinaryClaim, Terms, Truth, numbers
from surestep.certify.evidence import Evidence

HEADLINE = 0.8
"""The share of new instances whose certified loss is a certificate's headline."""


@dataclasses.dataclass(frozen=True)
class LossLevels(BinaryClaim):
    """How many new instances are below which losses, after how many iterations."""

    weight: ClassVar[float] = 3.0
    iterations: tuple[int, ...]
    """After how many iterations."""
    tolerances: tuple[float, ...]
    """Below which losses."""
    quantiles: tuple[float, ...]
    """For which shares of new instances a loss is certified, whatever it turns out to be."""
    kind: Literal["levels"] = "levels"

    @property
    def statistics(self) -> int:
        """One for every pair of iteration and loss."""
        return len(self.iterations) * len(self.tolerances)

    def values(
        self, terms: Terms, evidence: Evidence
    ) -> Float[np.ndarray, "statistic sample instance"]:
        """1 where the loss is above a tolerance at an iteration."""
        at = [terms.iterations.index(iteration) for iteration in self.iterations]
        shown = np.moveaxis(evidence.losses[:, :, at], 2, 0)
        above = shown[:, None] > np.asarray(self.tolerances)[:, None, None]
        return numbers(above.reshape(-1, *evidence.final.shape))

    def sentence(self, value: float, terms: Terms) -> str:
        """The headline's loss."""
        if not np.isfinite(value):
            return f"no loss is certified for {percent(HEADLINE)} of new instances."
        quantiles = len(self.quantiles) * len(self.iterations)
        return (
            f"at least {percent(HEADLINE)} of new instances end with a loss of at most "
            f"{rounded_up(value)} after {terms.horizon} iterations of the deployed rule (details: "
            f"{quantiles} such quantiles, and all {self.statistics} pairs of iteration and loss, "
            "at once)."
        )

    def statement(self, basis: Basis) -> Statement:
        """Half of the share pays for the pairs of iteration and loss, half for the quantiles."""
        shape = (len(self.iterations), len(self.tolerances))
        point, posterior = (v.reshape(shape) for v in self.uppers(basis, 0.5))
        ranked, drawn = self._quantiles(basis, 0.5)
        # Both hold at once, so the smaller one does.
        certified = np.minimum(ranked, self._read_off(point))
        certified_posterior = np.minimum(drawn, self._read_off(posterior))
        headline = self.quantiles.index(HEADLINE)
        final = float(certified[headline, -1])
        return self._stated(
            basis,
            final,
            float(certified_posterior[headline, -1]),
            self.sentence(final, basis.terms),
            iterations=list(self.iterations),
            tolerances=list(self.tolerances),
            above=point.tolist(),
            above_posterior=posterior.tolist(),
            quantiles=self._by_share(certified),
            quantiles_posterior=self._by_share(certified_posterior),
            first_hits=self._first_hits(point),
        )

    def _quantiles(self, basis: Basis, part: float) -> tuple[np.ndarray, np.ndarray]:
        """Certified losses by share and iteration, for the deployed rule and for the posterior.

        The last iteration has half of what is spent, the others the rest in equal parts.
        """
        terms, losses = basis.terms, basis.evidence.losses
        earlier = len(self.iterations) - 1
        weights = np.array([*[0.5 / max(earlier, 1)] * earlier, 0.5 if earlier else 1.0])
        spent = part * terms.ledger.of(self.name) / len(self.quantiles) * weights
        log_prior = np.array(terms.log_prior)
        point = np.empty((len(self.quantiles), len(self.iterations)))
        drawn = np.empty_like(point)
        held = np.exp(normalised(basis.log_posterior)) > 0
        for i, iteration in enumerate(self.iterations):
            seen = losses[:, :, terms.iterations.index(iteration)]
            for s, share in enumerate(self.quantiles):
                uppers = quantile_uppers(seen, share, log_prior, float(spent[i]))
                # A drawn rule is below what all that can be drawn are below.
                point[s, i], drawn[s, i] = uppers[basis.deployed_sample], uppers[held].max()
        return point, drawn

    def _read_off(self, above: Float[np.ndarray, "iteration tolerance"]) -> np.ndarray:
        """The smallest loss of the plan that each share is certified to be below, if any is."""
        tolerances = np.array(self.tolerances)
        return np.array(
            [
                [np.min(tolerances[row <= 1 - share], initial=np.inf) for row in above]
                for share in self.quantiles
            ]
        )

    def _by_share(self, losses: np.ndarray) -> dict[str, list[float | None]]:
        """Certified losses over the iterations, by share; nothing where none is certified."""
        return {
            f"{share:g}": [float(loss) if np.isfinite(loss) else None for loss in row]
            for share, row in zip(self.quantiles, losses, strict=True)
        }

    def _first_hits(
        self, above: Float[np.ndarray, "iteration tolerance"]
    ) -> dict[str, list[int | None]]:
        """Iterations within which a share of instances is certified to reach each tolerance."""
        return {
            f"{share:g}": [
                next(
                    (t for t, u in zip(self.iterations, column, strict=True) if u <= 1 - share),
                    None,
                )
                for column in above.T
            ]
            for share in self.quantiles
        }

    def judge(self, asserted: Asserted, exact: np.ndarray, truth: Truth) -> tuple[bool, float]:
        """Every pair, every quantile and every first hit must be true."""
        details = asserted.statement.details
        point, average = exact[:, asserted.deployed_sample], exact @ asserted.posterior
        above, drawn = (np.array(details[n]).ravel() for n in ("above", "above_posterior"))
        wrong = np.any(point > above + SLACK) or np.any(average > drawn + SLACK)
        wrong |= self._false_quantile(asserted, truth)
        wrong |= self._false_hit(asserted.statement, point)
        return bool(wrong), float(np.mean(above - point))

    def _false_quantile(self, asserted: Asserted, truth: Truth) -> bool:
        """Whether fewer instances than promised end at or below a certified loss."""
        alone = np.eye(len(asserted.posterior))[asserted.deployed_sample]
        for name, drawn in {"quantiles": alone, "quantiles_posterior": asserted.posterior}.items():
            for share, losses in asserted.statement.details[name].items():
                for iteration, loss in zip(self.iterations, losses, strict=True):
                    if loss is None:
                        continue
                    at = truth.terms.iterations.index(iteration)
                    below = truth.mean(truth.table.losses[:, :, at] <= loss)
                    if drawn @ below < float(share) - SLACK:
                        return True
        return False

    def _false_hit(self, statement: Statement, point: Float[np.ndarray, " pair"]) -> bool:
        """Whether a certified first hit promises more than is true."""
        table = point.reshape(len(self.iterations), len(self.tolerances))
        for share, hits in statement.details["first_hits"].items():
            for column, hit in zip(table.T, hits, strict=True):
                if hit is None:
                    continue
                if column[self.iterations.index(hit)] > 1 - float(share) + SLACK:
                    return True
        return False
