"""Problems of users' own: functions, data, surveys, and the rule that is picked for them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import surestep
from support.types import unchecked
from surestep.auto import configure as configuring
from surestep.auto import fit as fitting
from surestep.auto import programs
from surestep.auto.choice import experiment_for, goal_scale, pick
from surestep.auto.configure import configure, seconds, sizes_for, too_short
from surestep.auto.doctor import examine
from surestep.auto.fit import fit
from surestep.auto.survey import survey
from surestep.base.errors import ConfigurationError
from surestep.certify.planning import CertifySettings
from surestep.cli.main import main
from surestep.cli.starter import write_starter
from surestep.evaluate.test_set import EvaluateSettings
from surestep.problem.base import Problem, StockedProblem, instance
from surestep.problem.datasets import PriorSet, Split, SplitSizes
from surestep.problem.instance_files import fresh_instances
from surestep.problem.oracle import Oracle
from surestep.problem.penalties import L1, Box
from surestep.rollout.loop import rollout
from surestep.rules import (
    FistaWithRestart,
    GradientDescent,
    LearnedFista,
    MetricQuasiNewton,
    Predicted,
    Safeguarded,
    SafeguardSettings,
)
from surestep.solver.solver import load
from surestep.storage.files import write_text
from surestep.storage.records import to_json

RANDOM = np.random.default_rng(0)
MATRIX = RANDOM.normal(size=(5, 5)) + 3 * np.eye(5)
CURVATURE = MATRIX.T @ MATRIX


def sample(key):
    return jax.random.normal(key, (5,))


def quadratic(x, theta):
    """Its solution is linear in theta, and its Hessian is the same for all instances."""
    return 0.5 * jnp.sum((MATRIX @ x - theta) ** 2)


QUADRATIC = Problem.of(quadratic, x0=np.ones(5), sample=sample)
BOXED = Problem.of(quadratic, np.zeros(5), sample=sample, penalty=Box(-0.1, 0.1))
GUARD = SafeguardSettings()


@pytest.fixture(scope="module")
def surveyed():
    return survey(QUADRATIC, PriorSet.draw(QUADRATIC, 48, 0))


def test_data_are_split_without_repetition():
    numbers = np.arange(100.0)
    problem = Problem.of(lambda x, t: (x - t) ** 2, 0.0, thetas={"a": numbers})
    assert isinstance(problem, StockedProblem)
    split = Split.draw(problem, SplitSizes(30, 20, 35, 15), 7)
    sets = [np.asarray(one.thetas["a"]) for one in vars(split).values()]
    assert sorted(np.concatenate(sets)) == numbers.tolist()
    # A smaller set is the beginning of a larger one, another seed shuffles again.
    fewer = Split.draw(problem, SplitSizes(3, 2, 3, 1), 7)
    np.testing.assert_array_equal(fewer.train.thetas["a"], sets[2][:3])
    other = Split.draw(problem, SplitSizes(30, 20, 35, 15), 8)
    assert not np.array_equal(other.train.thetas["a"], sets[2])
    with pytest.raises(ConfigurationError, match="of which 35 are for the train set, not 36"):
        Split.draw(problem, SplitSizes(30, 20, 36, 15), 7)


def test_data_from_a_file_are_the_same_problem(tmp_path):
    arrays = {"a": RANDOM.normal(size=(80, 3)), "b": RANDOM.normal(size=80)}
    np.savez(tmp_path / "data.npz", a=arrays["a"], b=arrays["b"])

    def loss(x, theta):
        return (theta["a"] @ x - theta["b"]) ** 2

    one = Problem.of(loss, np.zeros(3), thetas=arrays)
    other = Problem.of(loss, np.zeros(3), thetas=tmp_path / "data.npz")
    sizes = SplitSizes(5, 5, 5, 5)
    assert Split.draw(one, sizes, 0).fingerprints() == Split.draw(other, sizes, 0).fingerprints()
    assert sizes_for(one) == SplitSizes(24, 16, 28, 12)


def test_fresh_instances_of_data_are_not_drawn_by_a_seed(tmp_path):
    problem = Problem.of(lambda x, t: (x - t["a"]) ** 2, 0.0, thetas={"a": np.arange(100.0)})
    with pytest.raises(ConfigurationError, match="instead of a seed"):
        fresh_instances(problem, "777", 10)
    np.savez(tmp_path / "new.npz", a=np.linspace(0.5, 2.5, 9))
    found = fresh_instances(problem, str(tmp_path / "new.npz"), 0)
    assert np.asarray(found.thetas["a"]).tolist() == np.linspace(0.5, 2.5, 9).tolist()


def test_losses_are_counted_from_their_bound():
    problem = Problem.of(lambda x, t: x**2 - t, 1.0, sample=jax.random.uniform,
                         lower=lambda t: -t)  # fmt: skip
    with jax.enable_x64(True):
        assert float(problem.loss(jnp.asarray(3.0), jnp.asarray(0.25))) == 9.0
        assert problem.start(0.0).dtype == jnp.float64


def test_a_penalty_makes_a_composite_problem():
    problem = Problem.of(quadratic, np.ones(5), sample=sample, penalty=L1(0.3))
    assert isinstance(problem, surestep.CompositeProblem)
    with jax.enable_x64(True):
        x, theta = jnp.arange(5.0), jnp.ones(5)
        assert float(problem.loss(x, theta)) == pytest.approx(float(quadratic(x, theta)) + 3.0)
        assert problem.prox(x, jnp.asarray(1.0), theta).tolist() == [0, 0.7, 1.7, 2.7, 3.7]


def test_a_survey_finds_solutions_curvature_and_what_predicts_them(surveyed):
    thetas = PriorSet.draw(QUADRATIC, 48, 0).thetas
    solutions = np.linalg.solve(MATRIX, np.asarray(thetas).T).T
    assert surveyed.minima.max() < 1e-12
    starts = 0.5 * np.sum((MATRIX @ np.ones(5) - np.asarray(thetas)) ** 2, axis=1)
    np.testing.assert_allclose(surveyed.starts, starts, rtol=1e-12)
    largest = np.linalg.eigvalsh(CURVATURE)[-1]
    assert largest <= surveyed.smoothness <= 1.2 * largest
    np.testing.assert_allclose(
        surveyed.root @ surveyed.root.T, np.linalg.inv(CURVATURE), rtol=1e-6, atol=1e-8
    )
    rule = pick(QUADRATIC, surveyed, GUARD).rule
    assert isinstance(rule, Predicted)
    with jax.enable_x64(True):
        found = [
            rule.start(Oracle(QUADRATIC, instance(thetas, i)), jnp.ones(5)) for i in range(40, 48)
        ]
    np.testing.assert_allclose(found, solutions[40:], atol=1e-4)


def test_the_metric_makes_the_first_step_newtons(surveyed):
    """On a quadratic with the right metric, one step from anywhere ends at the minimum."""
    with jax.enable_x64(True):
        rule = MetricQuasiNewton.of(jnp.asarray(surveyed.root))
        theta = QUADRATIC.sample(jax.random.key(1))
        losses = rollout(rule, QUADRATIC, theta, 2).losses
        assert float(losses[1]) < 1e-10 * float(losses[0])
        diagonal = MetricQuasiNewton.of(jnp.asarray([0.5, 1.0, 2.0]))
        moved = diagonal.metric(jnp.ones(3))
        np.testing.assert_allclose(moved, [0.25, 1.0, 4.0])
        # A metric that is wrong is mended by what the iterations show.
        wrong = MetricQuasiNewton.of(0.1 * jnp.eye(5))
        assert float(rollout(wrong, QUADRATIC, theta, 40).losses[-1]) < 1e-12


def test_untrained_rules_are_the_classical_ones():
    with jax.enable_x64(True):
        theta = BOXED.sample(jax.random.key(2))
        base = FistaWithRestart(1 / 30)
        expected = rollout(base, BOXED, theta, 30).losses
        found = rollout(LearnedFista.around(base, 8), BOXED, theta, 30).losses
        np.testing.assert_array_equal(found, expected)
        around = Predicted.around(base, 5, 5)
        np.testing.assert_array_equal(rollout(around, BOXED, theta, 30).losses, expected)


def test_a_predicted_start_meets_the_constraint():
    rule = Predicted(FistaWithRestart(1 / 30), jnp.full(5, 9.0), jnp.zeros((5, 0)),
                     jnp.zeros(0, jnp.int32))  # fmt: skip
    with jax.enable_x64(True):
        theta = BOXED.sample(jax.random.key(2))
        assert np.isfinite(float(rollout(rule, BOXED, theta, 1).losses[0]))


def test_what_is_picked_fits_the_structure(surveyed):
    smooth = pick(QUADRATIC, surveyed, GUARD)
    assert "L-BFGS's direction in a learned metric (a matrix)" in smooth.words
    assert "predicted from the instance's 5 numbers" in smooth.words
    assert isinstance(smooth.rule, Predicted) and isinstance(smooth.rule.rule, Safeguarded)
    assert isinstance(smooth.fallback, GradientDescent)
    found = survey(BOXED, PriorSet.draw(BOXED, 24, 0))
    boxed = pick(BOXED, found, GUARD)
    assert "FISTA with restart and learned steps" in boxed.words
    experiment = experiment_for(BOXED, found, GUARD, (0.1,))
    assert list(experiment.external) == ["L-BFGS-B (SciPy)"]
    # SciPy's solver finds the minimum that the survey's has found.
    theta = jax.tree.map(np.asarray, instance(PriorSet.draw(BOXED, 24, 0).thetas, 0))
    point = experiment.external["L-BFGS-B (SciPy)"](theta, -1.0, 0.0)
    with jax.enable_x64(True):
        assert float(BOXED.loss(point, theta)) == pytest.approx(found.minima[0], rel=1e-9)


def test_a_goal_that_all_minima_meet(surveyed):
    assert goal_scale(surveyed) == pytest.approx(1.02 * 0.01, rel=1e-6)
    stuck = dataclasses.replace(surveyed, starts=surveyed.minima + 1, minima=surveyed.minima + 1)
    with pytest.raises(ConfigurationError, match="the start is a solution already"):
        goal_scale(stuck)


class Untyped(Problem):
    """Its instances hold a number without a type of its own."""

    def sample(self, key):
        return {"a": jax.random.normal(key, (2,)), "b": jnp.asarray(0.5)}

    def start(self, theta):
        return jnp.zeros(2)

    def loss(self, x, theta):
        jax.debug.callback(lambda: None)
        return jnp.sum((theta["b"] * x - theta["a"]) ** 2)


def test_what_is_slow_is_said_in_words():
    notes = " ".join(examine(Untyped()))
    assert "compiled again for instances that do not come from sample: a number in theta" in notes
    assert "loss prints or calls back while it runs (jax.debug)" in notes
    plain = " ".join(examine(QUADRATIC))
    assert "compiled again" not in plain and "operations" not in plain


def test_a_long_program_is_found_before_it_is_compiled():
    def turns(x, number):
        for _ in range(number):
            x = 0.5 * x + 1.0
        return jnp.sum(x)

    (note,) = programs.notes("loss", programs.program(lambda x: turns(x, 600), jnp.ones(2)))
    assert "loss is a program of 1201 operations, 1200 of them from test_fit.py, line" in note
    looped = programs.program(
        lambda x: jax.lax.fori_loop(0, 600, lambda _, y: 0.5 * y + 1.0, x), jnp.ones(2)
    )
    assert programs.notes("loss", looped) == []
    assert {"mul", "add"} <= {one.primitive.name for one in programs.operations(looped)}


def test_budgets():
    assert [seconds(text) for text in ("90s", "10m", "0.5h", 30)] == [90, 600, 1800, 30]
    for wrong in ("ten", "5", "3d", "1s", float("nan"), -3):
        with pytest.raises(ConfigurationError, match="budget"):
            seconds(wrong)


def test_more_time_is_more_training(surveyed, monkeypatch):
    monkeypatch.setattr(configuring, "_measure", lambda *_: 1e-3)
    short = configure(QUADRATIC, surveyed, "quadratic", 10.0, 0)
    long = configure(QUADRATIC, surveyed, "quadratic", 600.0, 0)
    assert long.locate.steps > short.locate.steps
    assert long.population.members > short.population.members
    # Compiling was measured, and a budget that is less than that is said to be.
    assert 0 < short.problem.shortest < 600
    slow = dataclasses.replace(short, problem=dataclasses.replace(short.problem, shortest=90.0))
    assert "about 90 s however little it learns" in too_short(slow, 10.0)
    assert too_short(slow, 90.0) == ""
    for config in (short, long):
        config.validate()
        assert config.horizon == 5
        assert config.goal.scale == pytest.approx(0.0102)


@unchecked()
def test_a_run_that_has_begun_keeps_what_was_measured(tmp_path, monkeypatch):
    """Another time on the clock must not make another run of the same call."""
    times = iter((1e-3, 1e-2))
    monkeypatch.setattr(configuring, "_measure", lambda *_: next(times))

    def keep(config, experiment, folder, report):
        write_text(folder.config_path, to_json(config))
        return config

    monkeypatch.setattr(fitting, "learn", keep)
    monkeypatch.setattr(fitting, "write_report", lambda *_: None)
    first = fit(QUADRATIC, 60, out=tmp_path)
    assert fit(QUADRATIC, 60, out=tmp_path) == first
    with pytest.raises(ConfigurationError, match="a run of another problem or seed"):
        fit(QUADRATIC, 60, seed=1, out=tmp_path)


def test_from_data_to_a_certified_solver_and_its_folder(monkeypatch, tmp_path):
    monkeypatch.setattr(configuring, "_measure", lambda *_: 1.0)  # the least of everything
    numbers = {"theta": RANDOM.normal(size=(300, 5))}
    problem = Problem.of(lambda x, t: quadratic(x, t["theta"]), np.ones(5), thetas=numbers)
    shown = EvaluateSettings(baselines=("L-BFGS",), timed=5, limit=50, shifted=0)
    certified = CertifySettings(opponents=("L-BFGS",))
    learned = fit(problem, 10.0, out=tmp_path, evaluate=shown, certify=certified)
    assert learned.certificate.sizes["train"] == 105
    assert learned.certificate.statements[0].value < 0.06
    needed = learned.evaluation.gradient_quantile(0.9)
    assert np.all(needed[0] < needed[learned.evaluation.solvers.index("L-BFGS")])
    # All that `surestep run` leaves, the report included.
    facts = ("config", "status", "plan", "charges", "certificate")
    stages = ("chosen_by", "minima", "locate", "sample", "certify", "evaluate", "solver")
    names = {f"{fact}.json" for fact in facts} | {f"{stage}.safetensors" for stage in stages}
    found = {path.name for path in tmp_path.iterdir() if path.name[0] != "."}
    assert found == names | {"report.html", "figures"}
    assert load(tmp_path / "solver.safetensors", problem).certificate == learned.certificate


def test_what_is_found_is_said(tmp_path, capsys):
    path = tmp_path / "mine.py"
    path.write_text(
        "import jax, jax.numpy as jnp, numpy as np\n"
        "import surestep as ss\n"
        "problem = ss.make_problem(\n"
        "    lambda x, theta: jnp.sum((np.ones((2, 5)) @ x - theta) ** 2), np.zeros(5),\n"
        "    sample=lambda key: jax.random.normal(key, (2,)), penalty=ss.penalties.L1(0.1),\n"
        ")\n"
    )
    assert main(["check", str(path)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[-5:] == [
        "- the smooth part is quadratic in x, with the same Hessian on every instance: it can be "
        "factored once",
        "- its gradient is affine in theta",
        "- the Hessian has rank 1 of 5",
        "- prox acts coordinate by coordinate",
        "nothing is wrong with it",
    ]


def test_a_starting_file_is_written_once(tmp_path, capsys):
    path = tmp_path / "mine.py"
    assert main(["new", str(path)]) == 0
    assert "surestep check" in capsys.readouterr().out
    assert main(["check", str(path)]) == 0
    assert "nothing is wrong with it" in capsys.readouterr().out
    before = path.read_text()
    for wrong, message in [
        (path, "exists already"),
        (tmp_path / "mine.txt", "must be a Python file"),
        (tmp_path / "none" / "mine.py", "there is no folder"),
    ]:
        with pytest.raises(ConfigurationError, match=message):
            write_starter(wrong)
    assert path.read_text() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "nowhere.py"], "there is no file nowhere.py in "),
        (["check", "nowhere.py:1x"], "must be a file and a name in it"),
        (["run", "nothing"], "a problem of your own is a file"),
        (["run", "x.py", "--budget", "soon"], "a budget is a time like"),
        (["run", "x.py", "--seed", "-1"], "--seed must be"),
        (["new"], "the following arguments are required: file"),
    ],
)
def test_wrong_commands_are_told_so(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    assert message in capsys.readouterr().err
