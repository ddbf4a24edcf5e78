"""A solver's file: what was saved comes back, and nothing else gets in."""

import dataclasses
import functools
import json
import struct
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import surestep
from support.catalogue import PROBLEMS, Bowl, rules_for
from support.production import THETAS, certified_solver
from support.tiny import PROBLEM
from support.types import unchecked
from surestep import rules
from surestep.base.errors import ConfigurationError, SolverFileError
from surestep.problem.draw import working_precision
from surestep.problem.goal import Goal
from surestep.rules import GradientDescent, HeavyBall
from surestep.rules.base import Rule, missing_needs, solver_fingerprint, with_hyper
from surestep.solver.load import load
from surestep.solver.posterior import Posterior
from surestep.solver.rule_data import CLASSES, pack, references, unpack
from surestep.solver.solver import Solver
from surestep.storage import arrays as store

SOLVER = certified_solver()
_random = np.random.default_rng(0)
PROBES = {
    "regression": _random.normal(size=(2, 12)),
    "lasso": 3 * _random.normal(size=(2, 10)),
    "bowl": _random.normal(size=(2, 2, 2)),
}
PAIRS = [
    (name, rule)
    for name, entry in PROBLEMS.items()
    for rule, (solver, _, _) in rules_for(entry).items()
    if not missing_needs(solver, entry.problem)
]


def bare(problem, rule, probes):
    with working_precision(problem):
        return Solver(problem, rule, 5, Goal(1.0, 1.0), probes=jax.tree.map(jnp.asarray, probes))


@pytest.mark.parametrize(("problem_name", "rule_name"), PAIRS)
def test_every_classical_rule_comes_back(problem_name, rule_name, tmp_path):
    entry = PROBLEMS[problem_name]
    rule = rules_for(entry)[rule_name][0]
    bare(entry.problem, rule, PROBES[problem_name]).save(tmp_path / "solver")
    found = load(tmp_path / "solver", entry.problem)
    assert solver_fingerprint(found.rule) == solver_fingerprint(rule)
    assert jax.tree.structure(found.rule) == jax.tree.structure(rule)


KEY = jax.random.key(0)


def filled(create, *arguments, **settings):
    """What a constructor makes, with other numbers: drawing them would be compiled, one by one."""
    shapes = eqx.filter_eval_shape(create, *arguments, **settings)

    def fill(leaf):
        if not isinstance(leaf, jax.ShapeDtypeStruct):
            return leaf
        return jnp.asarray(_random.normal(size=leaf.shape), leaf.dtype)

    return jax.tree.map(fill, shapes)


@functools.cache
def learned_rules():
    coordinatewise = filled(rules.Coordinatewise.create, KEY)
    return [
        coordinatewise,
        filled(rules.Blended.create, KEY, 6),
        filled(rules.Convolutional.create, KEY, height=4, width=5),
        filled(rules.Preconditioned.create, KEY, dimension=6),
        filled(rules.Proximal.create, KEY, 0.1),
        filled(rules.LearnedSplitting.around, rules.ADMM(1.0), times=3),
        rules.LearnedPrimalDual(jnp.ones((2, 3, 4)), np.inf),
        rules.MetricConjugateGradients(jnp.zeros(6)),
        rules.ProximalGradient(0.1),
        rules.Safeguarded(coordinatewise, GradientDescent(1e-3), patience=7),
        rules.Started.around(rules.Scaled.around(rules.QuasiNewton(), 6), 6),
        filled(rules.Residual.around, rules.Adam(0.1), 6, KEY),
        GradientDescent(cast(Any, np.float32(0.1))),
        rules.PrimalDual(jnp.asarray(0.1, jnp.float32)),
        rules.ScaledFista(jnp.arange(3)),
        rules.Predicted(
            rules.MetricQuasiNewton.of(jnp.eye(3), first=2.0),
            jnp.ones(3),
            jnp.ones((3, 2)),
            jnp.asarray([1, -2], jnp.int32),
            0.5,
            0.1,
        ),
        filled(rules.LearnedFista.around, rules.FistaWithRestart(0.1), times=4),
        rules.CosineQuasiNewton.of(jnp.linspace(1.0, 2.0, 24), (8, 3), first=2.0),
        rules.Checked(
            rules.SharedADMM.of(jnp.eye(3), 0.5).prepare(),
            rules.FistaWithRestart(0.1),
            at=3,
            tolerance=0.25,
            compared=False,
        ),
        rules.Newton(anew=False),
        rules.NewtonCG(4, rules.Fixed(jnp.ones(3, jnp.float32)), squares=True),
        rules.GaussNewton(jnp.asarray(1e-3)),
        filled(rules.LearnedHeavyBall.around, rules.HeavyBall(0.1, 0.9), times=4),
        rules.Frozen(rules.HeavyBall(jnp.asarray(0.1), jnp.asarray(0.9))),
        rules.SinglePrecisionQuasiNewton.of(jnp.eye(3)),
        rules.BarzilaiBorwein(jnp.asarray(0.1), rules.Fixed(jnp.eye(3))),
        rules.NetworkStart(
            rules.HeavyBall(0.1, 0.9),
            rules.Fixed(jnp.ones((3,))),
            rules.Fixed(jnp.ones((3, 2))),
            rules.Fixed(jnp.ones((4, 2))),
            rules.Fixed(jnp.ones((4,))),
            rules.Fixed(jnp.ones((3, 4))),
        ),
        rules.FrontADMM(
            rules.Fixed(jnp.eye(3)),
            rules.Fixed(jnp.zeros((0, 3))),
            rules.Fixed(jnp.zeros(3)),
            jnp.zeros(3),
            jnp.ones(()),
            jnp.asarray([0, 1, 3], jnp.int32),
            jnp.asarray([0, 1, 1, 2], jnp.int32),
            rules.Fixed(jnp.ones(4)),
        ).prepare(),
        rules.ProgrammeADMM(
            jnp.zeros(2),
            jnp.ones(3),
            (0, 2),
            (1,),
            (),
            rules.Fixed(jnp.eye(3)),
            rules.Fixed(jnp.eye(3)),
            single=True,
        ),
    ]


@pytest.mark.parametrize("index", range(29))
@unchecked()
def test_every_rule_comes_back_from_json(index):
    rule = learned_rules()[index]
    packed = pack(rule)
    found = unpack(json.loads(json.dumps(packed.data, allow_nan=False)), packed.arrays, "file")
    assert type(found) is type(rule)
    assert solver_fingerprint(found) == solver_fingerprint(rule)
    # Before arrays are read it is known which there must be.
    forms = {name: (array.dtype.name, array.shape) for name, array in packed.arrays.items()}
    assert references(packed.data) == forms


@unchecked()
def test_the_tables_know_every_rule():
    public = {getattr(rules, name) for name in rules.__all__}
    assert {kind for kind in public if issubclass(kind, Rule)} <= set(CLASSES.values())
    catalogued = [rule for e in PROBLEMS.values() for rule, _, _ in rules_for(e).values()]
    seen = set().union(*map(_kinds, [*learned_rules(), *catalogued]))
    missing = {kind for kind in public if issubclass(kind, Rule)} - seen
    assert not missing, "rules that no test carries to a file and back"


def _kinds(rule):
    """The classes of a rule and of all rules within it."""
    inner = [value for value in vars(rule).values() if isinstance(value, Rule)]
    return {type(rule)}.union(*map(_kinds, inner))


@pytest.fixture
def saved(tmp_path):
    SOLVER.save(tmp_path / "solver.safetensors")
    return tmp_path / "solver.safetensors"


def test_a_solver_comes_back_with_all_it_had(saved):
    found = surestep.load(str(saved), PROBLEM)
    assert isinstance(found, surestep.Solver)
    assert found.certificate == SOLVER.certificate
    assert (found.horizon, found.block, found.goal) == (SOLVER.horizon, SOLVER.block, SOLVER.goal)
    for name in ("hypers", "log_weights"):
        np.testing.assert_array_equal(
            getattr(found.posterior, name), getattr(SOLVER.posterior, name)
        )
    mine, theirs = SOLVER.solve(THETAS), found.solve(THETAS)
    assert theirs.covered
    np.testing.assert_array_equal(theirs.x, mine.x)
    # Equal solvers make equal files, and nothing is left beside them.
    found.save(saved.with_name("again"))
    assert saved.with_name("again").read_bytes() == saved.read_bytes()
    assert len(list(saved.parent.iterdir())) == 2


def test_the_precision_of_the_process_does_not_matter(tmp_path):
    with jax.enable_x64(False):
        SOLVER.save(tmp_path / "solver")
        found: Any = load(tmp_path / "solver", PROBLEM)
    assert solver_fingerprint(found.rule) == solver_fingerprint(SOLVER.rule)
    assert found.rule.step_size.dtype == jnp.float64


class Even(Bowl):
    def sample(self, key):
        return jnp.full((2, 2), jax.random.uniform(key))


def test_probes_are_drawn_where_none_are_given(tmp_path):
    bare(Even(), GradientDescent(0.1), None).save(tmp_path / "solver")
    found = load(tmp_path / "solver", Even())
    assert found.probes.shape == (4, 2, 2) and len(np.unique(found.probes)) == 4


class Louder(Bowl):
    def loss(self, x, theta):
        return (1 + 1e-6) * super().loss(x, theta)


Louder.__name__ = "Bowl"


class Wider(Bowl):
    def sample(self, key):
        return jax.random.normal(key, (3, 2, 2))


Wider.__name__ = "Bowl"


class Longer(Bowl):
    def start(self, theta):
        return {"a": jnp.full((2, 2), 2.0), "b": jnp.asarray(-1.0), "c": jnp.zeros(1)}


Longer.__name__ = "Bowl"


class Single(Bowl):
    precision = "float32"


Single.__name__ = "Bowl"


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (PROBLEMS["regression"].problem, "class: wanted Bowl, found Regression"),
        (Single(), "precision: wanted float64, found float32"),
        (Wider(), r"theta: wanted theta float64 \(2, 2\), found theta float64 \(3, 2, 2\)"),
        (Longer(), r"x: wanted a float64 \(2, 2\), b float64 \(\), found .*c float64 \(1,\)"),
        (Louder(), "the loss of its probe instance 0 at the start: wanted .*, found"),
    ],
)
def test_another_problem_is_refused(problem, message, tmp_path):
    bare(Bowl(), GradientDescent(0.1), PROBES["bowl"]).save(tmp_path / "solver")
    with pytest.raises(SolverFileError, match=f"was made for another problem: {message}"):
        load(tmp_path / "solver", problem)


def rewritten(path, change=lambda facts: None, change_arrays=lambda arrays: None, **metadata):
    """A file that was changed on purpose, by someone who knows how to make its checksum fit."""
    arrays, found = store.read_arrays(path)
    facts = json.loads(found["facts"])
    change(facts)
    kept = references(facts["rule"])
    arrays = {name: a for name, a in arrays.items() if name[:5] != "rule/" or name in kept}
    change_arrays(arrays)
    found = found | {"facts": json.dumps(facts, sort_keys=True)} | metadata
    store.write_arrays(path, arrays, found)
    return path


def renamed(facts):
    facts["rule"]["rule"]["class"] = "subprocess.Popen"


def misnamed(facts):
    facts["rule"]["rule"]["fields"]["momentums"] = facts["rule"]["rule"]["fields"].pop("momentum")


def called(facts):
    facts["rule"]["rule"]["fields"]["momentum"] = {"function": "os.system"}


def another_step(facts):
    facts["rule"]["rule"]["fields"]["momentum"] = 0.5


def inflated(facts):
    facts["rule"]["rule"]["fields"]["momentum"]["shape"] = [2**40]


def lying_certificate(facts):
    facts["certificate"]["solver_sha256"] = "0" * 64


def longer_horizon(facts):
    facts["horizon"] = 11


def mistyped(facts):
    facts["block"] = "many"


def nested(facts):
    inner = {"tuple": []}
    for _ in range(100):
        inner = {"tuple": [inner]}
    facts["rule"]["rule"]["fields"]["momentum"] = inner


def other_sample(facts):
    facts["certificate"]["deployed_sample"] = (facts["certificate"]["deployed_sample"] + 1) % 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (renamed, "names the class subprocess.Popen, which is not one of"),
        (called, "names the function os.system"),
        (misnamed, "rule.momentum is missing"),
        (another_step, "is not the one that was saved"),
        (inflated, r"the array rule/1 should be float64 \(1099511627776,\), found float64 \(\)"),
        (lying_certificate, "the certificate in .* is of another rule: it names 0000000000000000"),
        (longer_horizon, "is about 10 iterations, the solver makes 11"),
        (mistyped, "header.block should be of type int, not 'many'"),
        (nested, "nested too deeply"),
        (other_sample, "the posterior in .* is of another rule: sample"),
    ],
)
def test_a_file_that_was_changed_is_refused(saved, change, message):
    with pytest.raises(SolverFileError, match=message):
        load(rewritten(saved, change), PROBLEM)


def test_numbers_that_were_changed_are_refused(saved):
    def perturbation(arrays):
        arrays["rule/0"] = arrays["rule/0"] * (1 + 1e-15)

    with pytest.raises(SolverFileError, match="is not the one that was saved: wanted"):
        load(rewritten(saved, change_arrays=perturbation), PROBLEM)

    def smuggle(arrays):
        arrays["rule/0"] = arrays["rule/0"] / (1 + 1e-15)
        arrays["more"] = np.zeros(3)

    with pytest.raises(SolverFileError, match="array more should be absent, found float64"):
        load(rewritten(saved, change_arrays=smuggle), PROBLEM)


def test_nothing_is_read_before_it_was_looked_at(saved, monkeypatch):
    """What a header announces is compared with what it should before an array is made."""
    rewritten(saved, inflated)
    monkeypatch.setattr(store, "_checksum", lambda *_: pytest.fail("arrays were read"))
    with pytest.raises(SolverFileError, match="1099511627776"):
        load(saved, PROBLEM)


def test_files_of_another_kind_are_refused(saved, tmp_path):
    whole = saved.read_bytes()
    for size in (0, 7, 100, len(whole) // 2, len(whole) - 1):
        saved.write_bytes(whole[:size])
        with pytest.raises(SolverFileError, match="not all of one"):
            load(saved, PROBLEM)
    at = len(whole) - 20
    saved.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    with pytest.raises(SolverFileError, match="checksum does not fit"):
        load(saved, PROBLEM)
    saved.write_bytes(struct.pack("<Q", 2**60) + whole[8:])
    with pytest.raises(SolverFileError, match="cannot be read"):
        load(saved, PROBLEM)
    np.savez(tmp_path / "file.npz", a=np.zeros(3))
    store.write_arrays(tmp_path / "stage", {"a": np.zeros(3)}, {"facts": "{}"})
    for name, message in (
        ("file.npz", "no solver's file"),
        ("stage", "no solver's file"),
        ("none", "No such file"),
    ):
        with pytest.raises(SolverFileError, match=message):
            load(tmp_path / name, PROBLEM)
    saved.write_bytes(whole)
    with pytest.raises(SolverFileError, match=r"has the format 2; this version .* reads format 1"):
        load(rewritten(saved, format="2"), PROBLEM)


def test_a_rule_that_the_problem_cannot_serve_is_refused(saved):
    def conjugate(facts):
        facts["rule"]["rule"] = {"class": "NesterovPerInstance", "fields": {}}
        facts["certificate"] = facts["posterior"] = None
        facts["rule_sha256"] = solver_fingerprint(rules.NesterovPerInstance())

    def emptied(arrays):
        for name in [n for n in arrays if n.startswith(("rule", "posterior"))]:
            del arrays[name]

    with pytest.raises(ConfigurationError, match="needs the method `smoothness`"):
        load(rewritten(saved, conjugate, emptied), PROBLEM)


class Momentum(HeavyBall):
    """A rule of a user's own, with a function of their own."""

    bend: Any = jnp.sinh

    def update(self, x, value, gradient, memory):
        return super().update(x, value, self.bend(gradient), memory)


def own_rule(step=0.1):
    with working_precision(PROBLEM):
        return rules.Started(Momentum(jnp.asarray(step), 0.5), jnp.arange(8.0))


def test_a_rule_of_ones_own_needs_a_template(tmp_path):
    path = tmp_path / "solver"
    dataclasses.replace(SOLVER, rule=own_rule(), certificate=None, posterior=None).save(path)
    with pytest.raises(SolverFileError, match=r"of its own, the class Momentum.*rule=template"):
        load(path, PROBLEM)
    other = eqx.tree_at(lambda r: r.shift, own_rule(0.7), jnp.zeros(8))
    found = load(path, PROBLEM, rule=other)
    assert solver_fingerprint(found.rule) == solver_fingerprint(own_rule())
    for template, message in (
        (rules.Started(own_rule().rule, jnp.zeros(7)), r"\.shift is .*\(8,\), in the template"),
        (rules.Started(Momentum(0.1, 0.5), jnp.zeros(8)), "in the template float"),
        (own_rule().rule, "the template is Momentum"),
        (rules.Started(Momentum(jnp.asarray(0.1), 0.5, jnp.tanh), jnp.zeros(8)), "not the one"),
        (rules.Started(GradientDescent(0.1), jnp.zeros(8)), "of 4 leaves, the template has 2"),
    ):
        with pytest.raises(SolverFileError, match=message):
            load(path, PROBLEM, rule=template)


def test_a_template_for_a_known_rule_must_fit_too(saved):
    template = with_hyper(SOLVER.rule, jnp.zeros(2))
    assert load(saved, PROBLEM, rule=template).certificate == SOLVER.certificate
    with pytest.raises(SolverFileError, match="found HeavyBall"):
        load(saved, PROBLEM, rule=GradientDescent(0.1))


@unchecked()
def test_pieces_of_equinox_come_back():
    class Holder(Rule):
        network: eqx.nn.MLP

        def init(self, oracle, x) -> Any: ...

        def step(self, oracle, state) -> Any: ...

    network = filled(eqx.nn.MLP, 2, 3, 4, 1, activation=jax.nn.gelu, key=KEY)
    shifted = rules.Started(network, jnp.zeros(2))  # pyright: ignore[reportArgumentType]
    packed = pack(shifted)
    assert "rule" in packed.data
    found = unpack(json.loads(json.dumps(packed.data)), packed.arrays, "file")
    assert solver_fingerprint(found) == solver_fingerprint(shifted)
    assert "own" in pack(Holder(network)).data


def test_weights_that_are_none_are_refused(tmp_path):
    none = Posterior(SOLVER.posterior.hypers, np.full(3, -np.inf))
    dataclasses.replace(SOLVER, posterior=none).save(tmp_path / "solver")
    with pytest.raises(SolverFileError, match="are no weights"):
        load(tmp_path / "solver", PROBLEM)
