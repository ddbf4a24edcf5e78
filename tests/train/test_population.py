"""A population: who goes on, who wins, and that an interruption changes nothing."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from support.tiny import CONFIG, SPLIT, TASK, TEACHER, changed
from surestep.base.errors import ConfigurationError
from surestep.base.keys import named_key
from surestep.problem.datasets import PriorSet
from surestep.report.draw import draw, save_figure
from surestep.report.history import history
from surestep.rules import (
    GradientDescent,
    HeavyBall,
    Residual,
    Safeguarded,
    Scaled,
    Started,
)
from surestep.rules.base import GradientRule, with_hyper
from surestep.storage.checkpoint import FileCheckpoint
from surestep.storage.run_folder import RunFolder
from surestep.train import population
from surestep.train.population import Chosen, PopulationSettings, choose
from surestep.train.steps import merit

SETTINGS = PopulationSettings(members=16, steps=3, rates=(1.0, 3.0, 0.1), instances=8)
LOCATING = changed(CONFIG.locate, learning_rate=1e-2)
FEW = PriorSet(jax.tree.map(lambda leaf: leaf[:8], SPLIT.prior.thetas))


class Momentum(GradientRule):
    """Heavy ball whose two numbers are learned."""

    numbers: Array

    def remember(self, x, value, gradient):
        return x

    def update(self, x, value, gradient, memory):
        step, momentum = self.numbers
        return x - step * gradient + momentum * (x - memory), x


def momenta(number) -> list[Any]:
    """Some with steps that are much too large."""
    random = np.random.default_rng(0)
    steps, momentum = 10.0 ** random.uniform(-5, -1, number), random.uniform(0, 0.9, number)
    return [Momentum(jnp.asarray(pair)) for pair in zip(steps, momentum, strict=True)]


def compete(settings=SETTINGS, rules: list[Any] | None = None, checkpoint=None):
    with jax.enable_x64(True):
        rules = rules or momenta(settings.members)
        return choose(
            settings, LOCATING, CONFIG.imitate, TASK, rules, None, SPLIT.prior, 0, checkpoint
        )


class Spy:
    """Notes the sizes of rounds and the learning rates in them."""

    def __init__(self, train):
        self.train, self.rounds, self.pupils = train, [], []

    def __call__(self, pupils, rule, problem, material, keys, rates, steps, length, horizon):
        self.rounds.append((np.asarray(rates), steps, length))
        self.pupils.append(pupils)
        return self.train(pupils, rule, problem, material, keys, rates, steps, length, horizon)


@pytest.fixture(scope="module")
def contest():
    """One competition of sixteen, and what happened in its rounds."""
    with pytest.MonkeyPatch.context() as patch:
        spy = Spy(population._train)
        patch.setattr(population, "_train", spy)
        return compete(), spy.rounds


def test_after_every_round_the_better_half_goes_on(contest):
    chosen, _ = contest
    took_part = ~np.isnan(chosen.merits)
    assert took_part.sum(axis=1).tolist() == [16, 16, 8, 4, 2]
    for number in range(2, 5):
        before, now = took_part[number - 1], took_part[number]
        assert np.all(before[now])
        # By the best that each has shown so far.
        best = np.nanmin(chosen.merits[:number], axis=0)
        assert best[now].max() <= best[before & ~now].min()


def test_the_winner_is_the_best_that_anyone_ever_was(contest):
    chosen, _ = contest
    winner = with_hyper(momenta(16)[0], jnp.asarray(chosen.hyper))
    assert merit(TASK, winner, FEW) == pytest.approx(np.nanmin(chosen.merits), rel=1e-12)
    firsts = [merit(TASK, rule, FEW) for rule in momenta(16)]
    np.testing.assert_allclose(chosen.merits[0], firsts, rtol=1e-9)
    assert merit(TASK, winner, FEW) <= min(firsts)
    assert np.nanmin(chosen.merits[:, chosen.member]) == np.nanmin(chosen.merits)


def test_rates_are_dealt_out_and_rounds_double(contest):
    chosen, rounds = contest
    took_part = ~np.isnan(chosen.merits)
    assert [steps for _, steps, _ in rounds] == [3, 6, 12, 24]
    dealt = np.array([(1.0, 3.0, 0.1)[i % 3] for i in range(16)])
    for number, (rates, _, length) in enumerate(rounds):
        expected = LOCATING.learning_rate * (dealt / 2.0 ** spoiled_before(chosen, number))
        np.testing.assert_allclose(rates, expected[took_part[number + 1]])
        assert length == 1
    dealt = dealt / 2.0 ** spoiled_before(chosen, 4)
    assert chosen.rate == pytest.approx(dealt[chosen.member])


def spoiled_before(chosen, number):
    """How often every member had become half a power of ten worse than its best by a round."""
    merits = chosen.merits[: number + 1]
    best = np.fmin.accumulate(merits, axis=0)
    return np.sum(merits[1:] > best[1:] + 0.5, axis=0)


def test_whom_training_spoils_goes_back_to_its_best_and_on_more_slowly():
    """A rate that makes any rule diverge in the first round: nobody may start from there."""
    with pytest.MonkeyPatch.context() as patch:
        spy = Spy(population._train)
        patch.setattr(population, "_train", spy)
        settings = PopulationSettings(members=4, steps=3, rates=(1e3,), instances=8)
        good = [Momentum(jnp.asarray([1e-4, 0.1 * i])) for i in range(4)]
        chosen = compete(settings, good)
    assert np.all(chosen.merits[1] > chosen.merits[0] + 0.5)
    np.testing.assert_allclose(spy.rounds[1][0], LOCATING.learning_rate * 1e3 / 2)
    before, returned = spy.pupils[1], np.sort(chosen.merits[0])[:2]
    found = [merit(TASK, with_hyper(good[0], hyper), FEW) for hyper in before.hyper]
    np.testing.assert_allclose(np.sort(found), returned, rtol=1e-9)
    assert not np.any(before.optimizer.mu)
    assert chosen.hyper.tolist() == good[chosen.member].numbers.tolist()


def test_members_without_a_gradient_that_works_do_not_win(contest):
    """Eigenvalues of 100 and more: steps above 4 / 100 diverge with any momentum below 1."""
    chosen, _ = contest
    diverging = [i for i, rule in enumerate(momenta(16)) if rule.numbers[0] > 4 / 100]
    assert diverging
    assert np.all(np.isnan(chosen.merits[-1, diverging]))


class Interrupted(FileCheckpoint):
    """The power goes right after a save."""

    def save(self, tree):
        super().save(tree)
        raise KeyboardInterrupt


def test_an_interrupted_competition_ends_as_if_nothing_had_happened(contest, tmp_path):
    place = tmp_path / "population.partial.safetensors"
    for _ in range(4):
        # Every attempt gets one round farther.
        with pytest.raises(KeyboardInterrupt):
            compete(checkpoint=Interrupted(place))
    again = compete(checkpoint=FileCheckpoint(place))
    for name, value in vars(contest[0]).items():
        np.testing.assert_array_equal(getattr(again, name), value, err_msg=name)


def test_a_result_comes_back_from_its_folder(contest, tmp_path):
    folder = RunFolder(tmp_path)
    folder.save("population", contest[0])
    found = folder.load("population", Chosen)
    np.testing.assert_array_equal(found.merits, contest[0].merits)
    assert (found.member, found.rate) == (contest[0].member, contest[0].rate)
    assert folder.dataset("population")["merits"].dims == ("round", "member")


def test_residual_rules_of_all_parts_need_no_teacher():
    """A learned start and metric around a guarded correction: untrained, all are heavy ball."""
    assert isinstance(TEACHER, HeavyBall)
    base, guard = TEACHER, GradientDescent(1 / CONFIG.problem.smoothness[1])

    def create(key):
        guarded = Safeguarded(Residual.around(base, 8, key, width=4), guard)
        return Started.around(Scaled.around(guarded, 8), 8)

    rules = [create(named_key(0, "rule", i)) for i in range(2)]
    chosen = compete(PopulationSettings(members=2, steps=20, length=2, instances=8), rules)
    classical = merit(TASK, Safeguarded(TEACHER, guard), FEW)
    np.testing.assert_allclose(chosen.merits[0], classical, rtol=1e-9)
    assert chosen.merits.shape == (2, 2)
    winner = with_hyper(rules[0], jnp.asarray(chosen.hyper))
    assert merit(TASK, winner, FEW) < classical
    # The start has been moved, and the metric.
    assert np.any(winner.shift != 0)
    assert isinstance(winner.rule, Scaled) and np.any(winner.rule.log_scales != 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"members": 0}, "population.members"),
        ({"steps": 0}, "population.steps"),
        ({"instances": 0}, "population.instances"),
        ({"rates": ()}, "population.rates must be positive"),
        ({"rates": (1.0, 0.0)}, "population.rates must be positive"),
        ({"length": 0}, "population.length must be at least 1"),
        ({"length": 11}, "must not exceed the horizon"),
    ],
)
def test_bad_settings_are_refused(change, message):
    with pytest.raises(ConfigurationError, match=message):
        PopulationSettings(**change).validate(horizon=10)
    with pytest.raises(ConfigurationError, match=message):
        changed(CONFIG, population=PopulationSettings(**change)).validate()


def test_rounds_until_one_is_left():
    assert [PopulationSettings(members=n).rounds for n in (1, 2, 3, 4, 5, 16)] == [0, 1, 2, 2, 3, 4]


def test_the_history_shows_every_member_as_long_as_it_took_part(contest, tmp_path):
    chosen, _ = contest
    figure = history("quadratics", chosen)
    (panel,) = figure.panels
    assert len(panel.lines) == 16
    winner = panel.lines[-1]
    assert winner.group == "winner" and winner.label == f"winner: member {chosen.member}"
    np.testing.assert_array_equal(
        winner.y, chosen.merits[~np.isnan(chosen.merits[:, chosen.member]), chosen.member]
    )
    assert sorted(len(line.x) for line in panel.lines) == [2] * 8 + [3] * 4 + [4] * 2 + [5] * 2
    assert all(line.group == "others" for line in panel.lines[:-1])
    assert [line.label for line in panel.lines if line.label] == ["other members", winner.label]
    (best,) = panel.points
    assert best.y == [np.nanmin(chosen.merits)]
    axes = draw(figure).axes[0]
    assert len(axes.get_legend_handles_labels()[1]) == 3
    names = {path.name for path in save_figure(figure, tmp_path)}
    assert names == {"population.json", "population.png", "population.svg"}
