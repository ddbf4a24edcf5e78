"""The audit: certificates are false as rarely as they say, and lies are found."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from support.session import repeats
from support.tiny import changed
from surestep.base.errors import ConfigurationError
from surestep.bounds import budget, uniform
from surestep.bounds.betting import Bet, mean_uppers
from surestep.bounds.kl import binomial_upper
from surestep.bounds.uniform import (
    Form,
    bet,
    most_above,
    posterior_upper,
    quantile_uppers,
    sample_uppers,
)
from surestep.certify.audit import (
    BY_BETTING,
    FAMILIES,
    ITERATIONS,
    AuditFamily,
    Outcome,
    audit,
    bernoulli_failures,
    honest,
    violations,
)
from surestep.certify.claims import ClippedLoss, GoalMissed, Sooner, Truth
from surestep.certify.statements import rigorous_statements

AUDITS = repeats(2000, quick=300)
"""How many certificates of each family are compared with the truth."""
LUCKY_AUDITS = repeats(300, quick=60)
"""The same where 200 samples are certified at a time; a lie shows much earlier."""


@pytest.mark.parametrize("name", FAMILIES)
def test_no_statement_is_false_more_often_than_its_epsilon(name):
    outcomes = audit(FAMILIES[name](), repeats=AUDITS)
    assert violations(outcomes) == []
    certain = {"missing the goal", "losses over iterations", "all jointly"}
    more = {"sooner", "better"} if name == "negative minima" else {"sublevel"}
    bounded = {"loss, clipped", "saving", "the user's own"}
    if name != "negative minima":
        bounded |= {"loss itself, clipped", "share of the goal", "advantage"}
    assert {o.statement for o in outcomes} >= certain | more | {b + BY_BETTING for b in bounded}
    assert all(o.repeats == AUDITS for o in outcomes)
    # The bounds say something: they are not trivially true. (In a few audits nothing need happen.)
    assert AUDITS < 2000 or sum(o.false for o in outcomes) > 0


def same_chance(samples=200):
    """Many samples that all fail with the same probability: the luckiest looks best."""
    family = bernoulli_failures(samples, 0.1)
    random = np.random.default_rng(5)
    failed = random.random((samples, 4000)) < 0.2
    losses = family.table.losses.copy()
    good, bad = 0.5 ** np.array([0, 5, 10]), np.array([1.0, np.inf, np.inf])
    losses[:] = np.where(failed[:, :, None], bad, good)
    reach = np.repeat(np.where(failed, np.inf, 3.0)[:, :, None], 6, axis=2)
    table = changed(family.table, losses=losses, reach=reach)
    return changed(family, table=table, log_prior=np.zeros(samples), betting=False)


LUCKY = same_chance()


def luckiest(evidence):
    final = evidence.losses[:, :, -1]
    return int(np.argmin(np.sum(final > evidence.thresholds, axis=1)))


def flat(plan):
    """A plan whose prior spreads evenly over all samples."""
    return changed(plan, log_prior=tuple(np.full(len(plan.log_prior), -np.log(200)).tolist()))


def deploy_luckiest(family, plan, evidence):
    """Deploys what did best on the train set, which an honest prior has paid for."""
    deployed = luckiest(evidence)
    posterior = np.full(len(evidence.losses), -np.inf)
    posterior[deployed] = 0.0
    return (
        rigorous_statements(flat(plan), evidence, posterior, deployed),
        posterior,
        deployed,
    )


def caught(outcomes, name):
    return name in {o.statement for o in violations(outcomes)}


def test_choosing_the_luckiest_is_paid_for_by_the_prior():
    outcomes = audit(LUCKY, repeats=LUCKY_AUDITS, certifier=deploy_luckiest)
    assert violations(outcomes) == []


def test_an_unnormalised_prior_is_caught(monkeypatch):
    monkeypatch.setattr(uniform, "normalised", lambda w: np.asarray(w) - np.max(w))
    outcomes = audit(LUCKY, repeats=LUCKY_AUDITS, certifier=deploy_luckiest)
    assert caught(outcomes, "missing the goal")
    assert caught(outcomes, "all jointly")


def test_a_prior_chosen_by_the_train_set_is_caught():
    def lie(family, plan, evidence):
        deployed = luckiest(evidence)
        betting = bet(np.zeros(len(evidence.losses)), deployed, 0.999)
        cheating = changed(plan, log_prior=tuple(betting.tolist()))
        statements = rigorous_statements(cheating, evidence, betting, deployed)
        return statements, betting, deployed

    assert caught(audit(LUCKY, repeats=LUCKY_AUDITS, certifier=lie), "missing the goal")


def test_instances_counted_twice_are_caught():
    def lie(family, plan, evidence):
        twice = evidence.on(np.tile(np.arange(plan.train_size), 2))
        return honest(family, changed(plan, train_size=2 * plan.train_size), twice)

    single = one_sample()
    number = repeats(1000, quick=400)
    outcomes = audit(single, repeats=number, certifier=lie)
    assert caught(outcomes, "missing the goal")
    assert violations(audit(single, repeats=number)) == []


def test_instances_that_depend_on_the_one_before_are_caught():
    """Four of five are the one before once more: their law is right, their number says too much."""
    random = np.random.default_rng(11)

    def lie(family, plan, evidence):
        again = np.zeros(plan.train_size, int)
        for i in range(1, plan.train_size):
            again[i] = again[i - 1] if random.random() < 0.8 else i
        return honest(family, plan, evidence.on(again))

    outcomes = audit(one_sample(), repeats=repeats(1000, quick=400), certifier=lie)
    assert caught(outcomes, "missing the goal")


def one_sample():
    family = bernoulli_failures(1, 0.3)
    return changed(family, log_prior=np.zeros(1), betting=False)


def test_instances_that_are_left_out_are_caught_by_bets():
    """One in twenty, those with the largest losses."""
    family = FAMILIES["heavy tails"]()

    def lie(family, plan, evidence):
        order = np.argsort(evidence.final[0])
        kept = np.concatenate([order[: -plan.train_size // 20], order[: plan.train_size // 20]])
        return honest(family, plan, evidence.on(kept))

    outcomes = audit(family, repeats=repeats(300, quick=60), size=200, certifier=lie)
    assert caught(outcomes, "loss itself, clipped" + BY_BETTING)


def many_scales(size, level):
    """One sample, whose losses are the rarer the larger they are, over many powers of ten.

    The largest are missing in a train set with a probability of a little less than the level, so a
    bound that has not seen any is about as often false as it may be.
    """
    family = one_sample()
    place = (np.arange(len(family.chances)) + 0.5) / len(family.chances)
    tails = -1.02 * np.log(level) / size * 1.5 ** np.arange(8)
    constants = 1e3 ** np.arange(8)
    losses = np.max(np.where(place < tails[::-1, None], constants[:, None], 0.0), axis=0)
    losses = np.repeat(losses[None, :, None], len(ITERATIONS), axis=2)
    return changed(family, table=changed(family.table, losses=losses)), constants


def test_a_constant_and_a_bet_that_are_chosen_on_the_train_set_are_caught():
    size, level = 60, 0.3
    family, constants = many_scales(size, level)
    plan = family.plan(size, level)
    truth, random = Truth(plan, family.table, family.chances), np.random.default_rng(7)
    menu = [
        ClippedLoss("clipped", float(c), form="betting", bets=(Bet(bet),))
        for c in constants
        for bet in (0.5, 1e3)
    ]
    number = repeats(2000, quick=1000)
    drawn = [family.draw(random, size) for _ in range(number + 1)]
    # By which factor every certified mean is above the true one, which a prior set tells.
    factors = []
    for claim in menu:
        seen = np.stack([claim.values(plan, evidence)[0, 0] for evidence in drawn])
        factors.append(mean_uppers(seen, np.log(level), claim.bets) / claim.exact(truth)[0, 0])
    boldest = np.argmin(factors, axis=0)
    chosen = {"before": np.full(number, boldest[0]), "after": boldest[1:]}
    outcomes = []
    for when, choice in chosen.items():
        false = np.array(factors)[choice, np.arange(1, number + 1)] < 1 - 1e-12
        outcomes.append(Outcome("scales", when, int(false.sum()), number, level, 0.0))
    assert [one.statement for one in violations(outcomes)] == ["after"]


def test_one_epsilon_spent_on_several_statements_is_caught(monkeypatch):
    """Ten statements about independent opponents, each given the whole of epsilon."""
    family = one_sample()
    random = np.random.default_rng(3)
    theirs = np.where(random.random((10, 4000)) < 0.4, 2.0, 4.0)[:, :, None]
    family = changed(
        family,
        table=changed(
            family.table,
            reach=np.full((1, 4000, 6), 3.0),
            opponent_reach=np.repeat(theirs, 6, axis=2),
            opponent_losses=np.ones((10, 4000)),
        ),
    )

    class Ten(AuditFamily):
        def plan(self, size, epsilon):
            plan = AuditFamily.plan(self, size, epsilon)
            names = tuple(f"opponent {i}" for i in range(10))
            claims = tuple(Sooner(f"sooner than {n}", n, 1) for n in names)
            shares = budget.divide(epsilon, {c.name: 1.0 for c in claims}).shares
            return changed(plan, claims=claims, opponents=names, shares=shares)

    ten = Ten(**{f.name: getattr(family, f.name) for f in dataclasses.fields(family)})
    number = repeats(500, quick=200)
    assert violations(audit(ten, repeats=number)) == []
    monkeypatch.setattr(budget.Ledger, "of", lambda ledger, name: ledger.epsilon)

    def lie(family, plan, evidence):
        return honest(family, plan, evidence)

    assert caught(audit(ten, repeats=number, certifier=lie), "all jointly")


def test_a_success_probability_from_the_set_that_chose_is_caught():
    random = np.random.default_rng(8)

    def lie(family, plan, evidence):
        """Selects on a validation set and bounds the success from the very same set."""
        statements, posterior, deployed = deploy_luckiest(family, plan, evidence)
        validation = family.draw(random, plan.train_size)
        deployed = luckiest(validation)
        misses = GoalMissed("").values(plan, validation)[0, deployed].sum()
        bound = float(
            binomial_upper(int(misses), plan.train_size, plan.ledger.of("missing the goal"))
        )
        lied = [
            dataclasses.replace(one, value=bound, posterior_value=1.0)
            if one.name == "missing the goal"
            else one
            for one in statements
        ]
        return lied, posterior, deployed

    assert caught(audit(LUCKY, repeats=LUCKY_AUDITS, certifier=lie), "missing the goal")


def test_a_violation_is_a_matter_of_numbers():
    def outcome(false):
        return Outcome("f", "s", false, 1000, 0.1, 0.0)

    assert violations([outcome(100)]) == []
    assert violations([outcome(160)]) == [outcome(160)]


def test_forms_agree_on_what_they_bound():
    means = np.array([[0.0, 0.1, 1.0]])
    log_prior = np.log([0.5, 0.3, 0.2])
    exact = sample_uppers(means, 10, log_prior, 0.1, "binomial")
    chernoff = sample_uppers(means, 10, log_prior, 0.1, "chernoff")
    kl = sample_uppers(means, 10, log_prior, 0.1, "pac-bayes-kl")
    rounding = 1e-9
    assert np.all(means <= exact)
    assert np.all(exact <= chernoff + rounding)
    assert np.all(chernoff <= kl + rounding)
    # The lighter the prior weight, the looser the bound.
    lighter = sample_uppers(np.zeros((1, 3)), 10, log_prior, 0.1, "binomial")[0]
    assert np.all(np.diff(lighter) > 0)
    point = np.array([-np.inf, 0.0, -np.inf])
    forms: dict[Form, np.ndarray] = {"binomial": exact, "chernoff": chernoff, "pac-bayes-kl": kl}
    for form, uppers in forms.items():
        found = posterior_upper(means, 10, log_prior, point, 0.1, form)
        assert found == pytest.approx(uppers[:, 1])


def test_weights_that_underflow_certify_nothing_and_break_nothing():
    log_prior = np.array([0.0, -1e5])
    forms: tuple[Form, ...] = ("binomial", "chernoff", "pac-bayes-kl")
    for form in forms:
        uppers = sample_uppers(np.zeros((1, 2)), 10, log_prior, 0.1, form)[0]
        assert uppers[1] == pytest.approx(1.0)
        assert uppers[0] < 1


@pytest.mark.parametrize(("size", "share"), [(20, 0.5), (60, 0.8), (60, 0.95)])
def test_certified_quantiles_are_false_as_rarely_as_they_say(size, share):
    """Ties and a jump at the quantile itself, the hardest case, and a prior of two."""
    random = np.random.default_rng(2)
    epsilon, tries, log_prior = 0.2, 4000, np.log([0.7, 0.3])
    below = share - 1e-9
    false = 0
    for _ in range(tries):
        losses = np.where(random.random((2, size)) < below, 1.0, 2.0)
        # A certified loss of 1 is a lie: fewer than `share` are that small.
        false += np.any(quantile_uppers(losses, share, log_prior, epsilon) < 2)
    assert false / tries <= epsilon + 4 * np.sqrt(epsilon / tries)
    assert false > 0


def test_quantiles_of_few_instances_or_light_weights_are_not_certified():
    losses = np.arange(20.0)[None].repeat(2, axis=0)
    found = quantile_uppers(losses, 0.5, np.array([0.0, -1e5]), 0.05)
    assert np.isfinite(found[0])
    assert np.isinf(found[1])
    assert np.isinf(quantile_uppers(losses[:1, :3], 0.8, np.zeros(1), 0.05)[0])
    # Infinite losses are the largest, no more.
    losses[0, :2] = np.inf
    assert np.isfinite(quantile_uppers(losses[:1], 0.5, np.zeros(1), 0.05)[0])


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 300), st.floats(0.05, 0.95), st.floats(1e-6, 0.5))
def test_the_count_above_a_quantile_is_the_largest_provable(size, share, level):
    (count,) = most_above(size, share, (level,))
    if count >= 0:
        assert stats.binom.cdf(count, size, 1 - share) <= level
    assert count + 1 == size or stats.binom.cdf(count + 1, size, 1 - share) > level * (1 - 1e-6)
    assert most_above(size, share, (level / 2,))[0] <= count
    assert most_above(2 * size, share, (level,))[0] / (2 * size) >= count / size - 1 / size


def test_only_coin_flips_get_the_binomial_bound():
    with pytest.raises(ConfigurationError, match="0 or 1"):
        sample_uppers(np.array([[0.123]]), 10, np.zeros(1), 0.1, "binomial")


def test_a_bet():
    weights = np.exp(bet(np.log([0.2, 0.3, 0.5]), 1, 0.9))
    assert weights == pytest.approx([0.02, 0.93, 0.05])
    assert np.exp(bet(np.zeros(2), 0, 0.0)) == pytest.approx([0.5, 0.5])
    with pytest.raises(ConfigurationError, match="stake"):
        bet(np.zeros(2), 0, 1.0)


def test_the_ledger_cannot_be_overspent():
    ledger = budget.divide(0.05, {"a": 1.0, "b": 3.0})
    assert ledger.of("b") == pytest.approx(0.0375)
    assert ledger.left == pytest.approx(0)
    with pytest.raises(ConfigurationError, match="is spent"):
        ledger.spend("c", 0.01)
    with pytest.raises(ConfigurationError, match="already"):
        budget.Ledger(0.05).spend("a", 0.01).spend("a", 0.01)
    with pytest.raises(ConfigurationError, match="nothing was paid"):
        ledger.of("c")
    with pytest.raises(ConfigurationError, match="positive weight"):
        budget.divide(0.05, {"a": 0.0})
