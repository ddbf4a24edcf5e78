"""The monitor after deployment."""

import numpy as np
import pytest
from scipy import stats

from surestep.base.errors import ConfigurationError
from surestep.solver import monitor as monitoring
from surestep.solver.bets import log_rest
from surestep.solver.monitor import Monitor


def alarms(rate, failure, delta, runs, length, seed=0):
    random = np.random.default_rng(seed)
    return sum(Monitor(failure, delta).fed(random.random(length) < rate).alarm for _ in range(runs))


def test_false_alarms_are_rare_however_long_it_runs():
    """Failures exactly as frequent as certified: the hardest truth that still holds."""
    raised = alarms(0.03, 0.03, 0.1, 400, 5000)
    assert stats.binomtest(raised, 400, 0.1, "greater").pvalue > 1e-3


def test_a_certificate_that_is_wrong_is_noticed():
    assert alarms(0.10, 0.03, 0.01, 50, 1000) == 50
    assert alarms(0.05, 0.03, 0.01, 50, 5000) >= 48


def test_it_is_quiet_when_all_is_well():
    assert alarms(0.01, 0.03, 0.01, 100, 5000) == 0


def test_feeding_one_by_one_or_all_at_once_is_the_same(tmp_path):
    outcomes = np.random.default_rng(1).random(300) < 0.06
    whole = Monitor(0.03).fed(outcomes)
    step = Monitor(0.03)
    for number, outcome in enumerate(outcomes):
        step = step.fed(outcome)
        if number == 150:
            step.save(tmp_path / "state.json")
            step = Monitor.load(tmp_path / "state.json")
    assert step.seen == whole.seen == 300
    assert step.log_bets == pytest.approx(whole.log_bets, rel=1e-9)
    assert step.highest == pytest.approx(whole.highest, rel=1e-9)


def until_alarm(failure, quiet, rate, seed):
    """How many outcomes with another failure rate it takes, after quiet ones."""
    monitor = Monitor(failure).fed(np.zeros(quiet))
    outcomes = np.random.default_rng(seed).random(3000) < rate
    for number, outcome in enumerate(outcomes):
        monitor = monitor.fed(outcome)
        if monitor.alarm:
            return number + 1
    return np.inf


@pytest.mark.parametrize("quiet", [0, 1000, 10_000, 100_001])
def test_it_does_not_grow_blind_while_all_is_well(quiet):
    """After 10 000 quiet outcomes it once took 418 failures in a row."""
    assert until_alarm(0.02, quiet, 1.0, 0) <= 8
    late = [until_alarm(0.02, quiet, 0.3, seed) for seed in range(20)]
    # Who knew rate and time would need log(100) / KL(0.3, 0.02) = 8 outcomes in the mean.
    assert np.median(late) <= 60


def test_what_is_bet_and_what_is_not_add_up_to_one():
    """So the wealth is 1 in the mean, whatever has been seen."""
    monitor = Monitor(0.25)
    for _ in range(200):
        rest = np.exp(log_rest(monitor.seen + 1))
        bet = np.exp(np.array(monitor.log_bets))
        # Failures are as probable as certified: no bet changes in the mean.
        means = 0.75 * (1 - 0.25 * np.array(monitoring._BETS) / 0.25) + 0.25 * (
            1 + 0.75 * np.array(monitoring._BETS) / 0.25
        )
        np.testing.assert_allclose(means, 1.0, rtol=1e-12)
        if monitor.seen == 0:
            assert bet.sum() + rest == pytest.approx(1.0, rel=1e-12)
        monitor = monitor.fed([0.25])  # an outcome that no bet wins or loses by
    assert np.exp(np.array(monitor.log_bets)).sum() + np.exp(
        log_rest(monitor.seen + 1)
    ) == pytest.approx(1.0, rel=1e-9)


def test_false_alarms_are_rare_after_quiet_times_too():
    """The rate rises to what is certified, and no further."""
    random, raised = np.random.default_rng(3), 0
    for _ in range(300):
        quiet, loud = np.zeros(2000), random.random(3000) < 0.05
        raised += Monitor(0.05, 0.1).fed(np.concatenate([quiet, loud])).alarm
    assert stats.binomtest(raised, 300, 0.1, "greater").pvalue > 1e-3


def test_an_alarm_stays():
    monitor = Monitor(0.01).fed(np.ones(20))
    assert monitor.alarm
    assert "ALARM" in str(monitor)
    assert monitor.fed(np.zeros(100_000)).alarm


def test_nonsense_is_refused():
    with pytest.raises(ConfigurationError, match="from 0 to 1"):
        Monitor(0.1).fed([2.0])
    with pytest.raises(ConfigurationError, match="from 0 to 1"):
        Monitor(0.1).fed([np.nan])
    with pytest.raises(ConfigurationError, match="strictly between"):
        Monitor(0.0)
    assert Monitor(0.1).fed([]) == Monitor(0.1)
