"""Sampling in two dimensions under a constraint that is only known by trying."""

import dataclasses
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Scalar

from surestep.base.keys import named_key
from surestep.base.progress import Reporter
from surestep.report.figures import Field, Figure, Panel, Points
from surestep.train import (
    Constraint,
    SuccessEstimate,
    constrained_chain,
    estimate_success,
    langevin_move,
)

CONSTRAINT = Constraint(
    lower=0.6, upper=1.0, quantile_lower=0.01, quantile_upper=0.99, width=0.05, early_decision=0.0
)
STEP, BURN_IN, PROPOSALS = 5e-3, 200, 6000
START = (1.0, -1.0)
EDGE = 1.5
_GRID = np.linspace(-EDGE - 0.1, EDGE + 0.1, 121)

Point = Float[Array, "2"]


def probability(u: Float[np.ndarray, "... 2"]) -> Float[np.ndarray, "..."]:
    """The paper's success probability: it jumps, and where it is large is not convex."""
    first, second = u[..., 0], u[..., 1]
    smooth = np.clip(1 - np.cos(2 * first) - np.sin(second + 0.5), 0, 1)
    outside = (np.abs(first) >= EDGE) | (np.abs(second) >= EDGE) | (second >= 2 * first)
    return np.where(outside, 0.0, smooth)


def potential(u: Point) -> Scalar:
    """The paper's potential: samples follow `exp(-potential)` where the constraint is met."""
    return 0.5 * (u[0] + 0.5 * u[1] + 0.5 * u[0] * u[1]) ** 2


@dataclasses.dataclass(frozen=True)
class Chain:
    """Where proposals were made and what became of them."""

    proposals: Float[np.ndarray, "proposal 2"]
    accepted: Bool[np.ndarray, " proposal"]
    positions: Float[np.ndarray, "proposal 2"]


def run_chain(seed: int, proposals: int, report: Reporter, step: float = STEP) -> Chain:
    """The chain that `surestep run` samples its prior with, on the toy."""
    gradient = jax.jit(jax.grad(potential))
    random = np.random.default_rng(seed)

    def propose(number: int, position: Point) -> Point:
        key = named_key(seed, "toy", number)
        return langevin_move(key, position, gradient(position), step)

    def trials(chance: float) -> Iterator[Bool[np.ndarray, " block"]]:
        while True:
            yield random.random(512) < chance

    def estimate(_: int, proposal: Point) -> SuccessEstimate:
        return estimate_success(trials(float(probability(np.asarray(proposal)))), CONSTRAINT)

    moves = []
    chain = constrained_chain(propose, estimate, jnp.asarray(START), feasible=True)
    with report.stage("sampling", proposals, "proposals") as bar:
        for move in chain:
            moves.append(move)
            if len(moves) % 100 == 0:
                bar.advance(100, f"{sum(m.accepted for m in moves)} accepted")
            if len(moves) == proposals:
                break
    return Chain(
        np.array([move.proposal for move in moves], np.float64),
        np.array([move.accepted for move in moves]),
        np.array([move.position for move in moves], np.float64),
    )


def constrained_sampling(seed: int, report: Reporter) -> Figure:
    """The true probability and potential, the samples with their errors, what they estimate."""
    chain = run_chain(seed, PROPOSALS, report)
    grid = np.stack(np.meshgrid(_GRID, _GRID), axis=-1)
    chance = probability(grid)
    inside = chance >= CONSTRAINT.lower
    values = np.asarray(jax.vmap(jax.vmap(potential))(jnp.asarray(grid)), np.float64)
    return Figure(
        name="sampling",
        title="Probabilistically constrained sampling: "
        f"{int(chain.accepted.sum())} of {PROPOSALS} proposals accepted",
        groups=["accepted", "rejected", "false positive", "false negative"],
        panels=[
            _field_panel("Success probability", "probability", chance),
            _field_panel(
                f"Potential where the probability is at least {CONSTRAINT.lower:g}",
                "potential",
                np.where(inside, values - values[inside].min(), np.nan),
            ),
            _samples_panel(chain),
            _field_panel(
                "Potential estimated from the samples", "potential", _estimated(chain.positions)
            ),
        ],
    )


def _field_panel(title: str, label: str, values: Float[np.ndarray, "y x"]) -> Panel:
    field = Field(label, _GRID.tolist(), _GRID.tolist(), values.tolist())
    return Panel(title, "first coordinate", "second coordinate", field=field)


def _samples_panel(chain: Chain) -> Panel:
    good = probability(chain.proposals) >= CONSTRAINT.lower
    parts = {
        "accepted": chain.accepted & good,
        "rejected": ~chain.accepted & ~good,
        "false positive": chain.accepted & ~good,
        "false negative": ~chain.accepted & good,
    }
    return Panel(
        "Proposals",
        "first coordinate",
        "second coordinate",
        points=[
            Points(
                f"{name} ({int(chosen.sum())})",
                name,
                chain.proposals[chosen, 0].tolist(),
                chain.proposals[chosen, 1].tolist(),
                2.5 if name in ("accepted", "rejected") else 5.0,
            )
            for name, chosen in parts.items()
        ],
    )


def _estimated(positions: Float[np.ndarray, "proposal 2"]) -> Float[np.ndarray, "y x"]:
    """Minus the logarithm of how often the chain was near each point, up to a constant."""
    first, second = positions[BURN_IN:].T
    edges = np.linspace(_GRID[0], _GRID[-1], 31)
    counts = np.histogram2d(second, first, bins=(edges, edges))[0]
    with np.errstate(divide="ignore"):
        estimated = np.where(counts > 0, np.log(counts.max()) - np.log(counts), np.nan)
    cell = np.clip(np.searchsorted(edges, _GRID, side="right") - 1, 0, len(edges) - 2)
    return estimated[np.ix_(cell, cell)]
