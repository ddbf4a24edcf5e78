"""The claim about losses over the iterations: pairs and quantiles."""

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
    counted: Literal["loss", "above", "left"] = "loss"
    """The loss itself; how far it is above the reference; or which share is left of what lay
    between the start and the reference."""
    kind: Literal["levels"] = "levels"

    @property
    def statistics(self) -> int:
        """One for every pair of iteration and loss."""
        return len(self.iterations) * len(self.tolerances)

    def values(
        self, terms: Terms, evidence: Evidence
    ) -> Float[np.ndarray, "statistic sample instance"]:
        """1 where the loss is above a tolerance at an iteration."""
        shown = np.stack([self._measured(terms, evidence, i) for i in self.iterations])
        above = shown[:, None] > np.asarray(self.tolerances)[:, None, None]
        return numbers(above.reshape(self.statistics, *evidence.final.shape))

    def _measured(
        self, terms: Terms, evidence: Evidence, iteration: int
    ) -> Float[np.ndarray, "sample instance"]:
        """What is certified of the loss after an iteration."""
        losses = evidence.losses[:, :, terms.iterations.index(iteration)]
        if self.counted == "loss":
            return losses
        above = evidence.above(losses)
        if self.counted == "above":
            return above
        gap = evidence.starts - evidence.references
        with np.errstate(divide="ignore", invalid="ignore"):
            # Where there was nothing to gain, nothing is left unless something was lost.
            left = np.where(above > 0, above / np.maximum(gap, 0.0), 0.0)
        return np.where(np.isfinite(evidence.references), left, np.inf)

    def sentence(self, value: float, terms: Terms) -> str:
        """The headline's loss."""
        if not np.isfinite(value):
            return f"no loss is certified for {percent(HEADLINE)} of new instances."
        above = f" above {terms.above}" if self.counted == "above" and terms.above else ""
        found = f"end with a loss of at most {rounded_up(value)}{above}"
        if self.counted == "left" and terms.above:
            found = (
                f"have closed all but {rounded_up(value)} of the gap from the start's loss to "
                f"{terms.above}"
            )
        elif self.counted == "left":
            found = f"end with a loss of at most {rounded_up(value)} times the start's"
        quantiles = len(self.quantiles) * len(self.iterations)
        pairs = (
            f", and all {self.statistics} pairs of iteration and loss" if self.tolerances else ""
        )
        return (
            f"at least {percent(HEADLINE)} of new instances {found} after {terms.horizon} "
            f"iterations of the deployed rule (details: {quantiles} such quantiles{pairs}, all at "
            "once)."
        )

    def statement(self, basis: Basis) -> Statement:
        """Half of the share pays for the pairs of iteration and loss, half for the quantiles.

        Without pairs the quantiles have all of it.
        """
        shape = (len(self.iterations), len(self.tolerances))
        point, posterior = np.ones((2, *shape))
        if self.tolerances:
            point, posterior = (v.reshape(shape) for v in self.uppers(basis, 0.5))
        ranked, drawn = self._quantiles(basis, 0.5 if self.tolerances else 1.0)
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
            counted=self.counted,
            iterations=list(self.iterations),
            tolerances=list(self.tolerances),
            above=point.tolist(),
            above_posterior=posterior.tolist(),
            quantiles=self._by_share(certified),
            quantiles_posterior=self._by_share(certified_posterior),
        )

    def says_something(self, statement: Statement) -> bool:
        """Whether a loss is certified for any share."""
        rows = statement.details["quantiles"].values()
        return any(one is not None for row in rows for one in row)

    def _quantiles(self, basis: Basis, part: float) -> tuple[np.ndarray, np.ndarray]:
        """Certified losses by share and iteration, for the deployed rule and for the posterior.

        The last iteration has half of what is spent, the others the rest in equal parts.
        """
        terms = basis.terms
        earlier = len(self.iterations) - 1
        weights = np.array([*[0.5 / max(earlier, 1)] * earlier, 0.5 if earlier else 1.0])
        spent = part * terms.ledger.of(self.name) / len(self.quantiles) * weights
        log_prior = np.array(terms.log_prior)
        point = np.empty((len(self.quantiles), len(self.iterations)))
        drawn = np.empty_like(point)
        held = np.exp(normalised(basis.log_posterior)) > 0
        for i, iteration in enumerate(self.iterations):
            seen = self._measured(terms, basis.evidence, iteration)
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

    def judge(self, asserted: Asserted, exact: np.ndarray, truth: Truth) -> tuple[bool, float]:
        """Every pair, every quantile and every first hit must be true."""
        details = asserted.statement.details
        point, average = exact[:, asserted.deployed_sample], exact @ asserted.posterior
        above, drawn = (np.array(details[n]).ravel() for n in ("above", "above_posterior"))
        wrong = np.any(point > above + SLACK) or np.any(average > drawn + SLACK)
        wrong |= self._false_quantile(asserted, truth)
        return bool(wrong), float(np.mean(above - point)) if self.tolerances else np.nan

    def _false_quantile(self, asserted: Asserted, truth: Truth) -> bool:
        """Whether fewer instances than promised end at or below a certified loss."""
        alone = np.eye(len(asserted.posterior))[asserted.deployed_sample]
        for name, drawn in {"quantiles": alone, "quantiles_posterior": asserted.posterior}.items():
            for share, losses in asserted.statement.details[name].items():
                for iteration, loss in zip(self.iterations, losses, strict=True):
                    if loss is None:
                        continue
                    measured = self._measured(truth.terms, truth.table, iteration)
                    below = truth.mean(measured <= loss)
                    if drawn @ below < float(share) - SLACK:
                        return True
        return False
