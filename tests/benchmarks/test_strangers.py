"""The opponents of strangers' families are right: they agree on minima and get to 1e-6."""

import ast
import json
import math
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.strangers import counting, families, page, records, timing
from benchmarks.strangers.opponents import composite, menus
from benchmarks.strangers.opponents.loop import alone, in_turn, together
from benchmarks.strangers.processes import last_line

RNG = np.random.default_rng(0)
FOLDER = Path(families.__file__).parent


def _normal(*shape):
    return np.random.default_rng(len(shape)).normal(size=shape)


def _sparse():
    D = _normal(12, 20)
    D /= np.linalg.norm(D, axis=0)
    return menus.sparse(D, 0.1), _normal(8, 12)


def _simplex():
    factor = _normal(10, 10)
    return menus.simplex(factor @ factor.T / 10 + 0.1 * np.eye(10)), _normal(8, 10)


def _softmax():
    features = _normal(8, 40, 4)
    classes = np.argmax(features[..., :3] + 0.5 * _normal(8, 40, 3), axis=-1)
    thetas = {"features": features, "labels": np.eye(3)[classes]}
    return menus.softmax(4, 3, 40, 1e-2), thetas


def _control():
    A, B = np.array([[1.0, 0.3], [0.0, 1.0]]), np.array([[0.0], [0.3]])
    return menus.control(A, B, 6, 1.0, 20.0, 0.1), 1.5 * _normal(8, 2)


def _phase():
    A = _normal(40, 4)
    truths = 1 + 0.2 * _normal(8, 4)
    return menus.phase(A, lambda theta: jnp.ones(4) + 0 * theta[0]), (truths @ A.T) ** 2 + 0.01


def _gamma():
    features = _normal(8, 40, 5)
    features[..., -1] = 1.0
    outcomes = np.exp(features[..., 0]) * np.random.default_rng(3).gamma(2.0, 0.5, (8, 40))
    return menus.gamma(5, 40, 1e-2), {"features": features, "outcomes": outcomes}


SMALL = {
    "sparse": _sparse,
    "simplex": _simplex,
    "softmax": _softmax,
    "control": _control,
    "phase": _phase,
    "gamma": _gamma,
}
EXCUSED = {"gradient descent", "heavy ball", "proximal gradient", "projected gradient"}
"""Their steps are for the families themselves, or they are slow."""


SLOW = {"sparse", "softmax", "gamma"}
"""Many programs are compiled for them."""
ENTERED = [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in SMALL]


@pytest.mark.parametrize("name", ENTERED)
def test_all_opponents_reach_the_minimum(name):
    menu, thetas = SMALL[name]()
    where = counting.ground(menu, thetas)  # two methods agree, or it raises
    assert np.all(where.gaps > 0)
    for method in menu.methods:
        loop, fewest = counting.tuned(where, method)
        if method.name not in EXCUSED:
            assert fewest is not None, method.name
            assert counting.iterations_needed(where, loop, method.limit)[-1] == fewest
    for library in menu.libraries:
        needed = counting.tolerances_needed(where, library)
        assert None not in needed, library.name
        assert sorted(needed, key=lambda one: -(one or 0.0)) == needed


@pytest.mark.parametrize("name", families.CONTESTED)
def test_opponents_minimise_what_the_stranger_wrote(name):
    entered = families.family(name, 2, 1)
    instances = counting.separate(entered.thetas)
    size = np.asarray(entered.menu.start(instances[0])).size
    x = 0.1 * np.random.default_rng(1).normal(size=size)
    if name == "portfolio":
        x = np.abs(x) / np.abs(x).sum()
    for theta in instances:
        start = entered.problem.start(theta)
        np.testing.assert_allclose(np.ravel(start), entered.menu.start(theta), atol=1e-12)
        with jax.enable_x64(True):
            theirs = entered.problem.loss(jnp.asarray(x).reshape(np.shape(start)), theta)
        np.testing.assert_allclose(entered.menu.loss(x, theta), theirs, rtol=1e-10)


def test_every_file_has_a_problem():
    files = sorted(p.stem for p in (FOLDER / "problems").glob("*.py") if p.stem != "__init__")
    assert files == sorted(families.ALL)
    for name in families.OTHERS:
        file = families.module(name)
        theta = file.problem.sample(jax.random.key(0))
        assert file.problem.loss(file.problem.start(theta), theta) > 0


def test_the_simplex_projection_is_the_nearest_point():
    for v in RNG.normal(size=(20, 7)):
        ordered = np.sort(v)[::-1]
        levels = (np.cumsum(ordered) - 1) / np.arange(1, 8)
        level = levels[np.flatnonzero(ordered > levels)[-1]]
        np.testing.assert_allclose(composite.on_simplex(v), np.maximum(v - level, 0), atol=1e-12)


def test_states_at_once_are_those_step_by_step():
    A, B = _normal(3, 3), _normal(3, 2)
    lead, reach = menus.condensed(A, B, 4)
    inputs, state, states = _normal(4, 2), np.ones(3), []
    for row in inputs:
        state = A @ state + B @ row
        states.append(state)
    np.testing.assert_allclose(lead @ np.ones(3) + reach @ inputs.ravel(), np.ravel(states))


def test_opponents_import_nothing_of_surestep():
    for path in (FOLDER / "opponents").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            assert not any(name.startswith("surestep") for name in names), path
            assert all(
                name.startswith("benchmarks.strangers.opponents")
                for name in names
                if name.startswith("benchmarks")
            ), path


def _table():
    ours = records.Timed(
        "surestep", "ours", "", 12, [2.0, 4.0, 6.0], [1.0, 1.0, 1.0], (1.0, 1.0), (3.0, 7.0)
    )
    best = records.Timed("ADMM", "loop", "rho 1", 30, [4.0, 8.0, 12.0], [0.5] * 3, (1.0, 1.0))
    far = records.Timed("GD", "loop", "", 999, [], [], (9.0, 9.0))
    never = records.Timed("HB", "loop", "", None, [], [], None)
    contest = records.Contest(1e-6, [ours, best, far, never])
    bare = records.Timed("function", "ours", "", 12, [1.0, 2.0, 3.0], [0.25] * 3, (1.0, 1.0))
    outcome = records.Outcome("portfolio", 64, "1m", 70.0, 40.0, "a rule", [contest], [bare])
    return records.Table(records.SCHEMA, {"jax": "0"}, [outcome])


def test_results_are_read_back_and_printed(tmp_path):
    path = tmp_path / "results.json"
    records.save_table(_table(), path)
    again = records.load_table(path)
    assert again == _table()
    text = page.page(again)
    alone = "| portfolio | 1e-06 | alone | 4 s (12) | ADMM 8 s (30) | 0.50 (0.50 to 0.50) | "
    assert alone + "0.25 (0.25 to 0.25) | 10 solves |" in text
    both = "2.00 (2.00 to 2.00) | 0.50 (0.50 to 0.50)"
    assert f"| 1 s (12) | ADMM 500 ms (30) | {both} |  |" in text
    assert "| GD | 999, (9 s), (9 s) |" in text
    assert "| HB | - |" in text
    assert "ours, 50th and 99th percentile: to 1e-06 3 s and 7 s." in text


def test_tables_from_before_latencies_are_read(tmp_path):
    path = tmp_path / "results.json"
    records.save_table(_table(), path)
    plain = json.loads(path.read_text())
    plain["schema"] = 1
    outcome = plain["outcomes"][0]
    for one in outcome["contests"][0]["timed"] + outcome["bare"]:
        del one["latency"]
    path.write_text(json.dumps(plain))
    again = records.load_table(path)
    assert again.outcomes[0].contests[0].timed[0].latency is None
    assert "percentile" not in page.page(again)


def test_results_of_another_schema_are_refused(tmp_path):
    path = tmp_path / "results.json"
    path.write_text(json.dumps({"schema": 0}))
    with pytest.raises(records.RunFolderError):
        records.load_table(path)


def test_the_interval_of_a_ratio_holds_its_middle():
    us, them = RNG.uniform(1, 2, 15), RNG.uniform(1, 2, 15)
    middle, low, high = page.ratio(list(us), list(them))
    assert low <= middle <= high and math.isclose(middle, float(np.median(us / them)))


def test_the_last_line_is_what_stands_last_on_the_screen(tmp_path):
    log = tmp_path / "said"
    log.write_text("one\ntwo 1 %\rtwo 2 %\r\n\n")
    assert last_line(log) == "two 2 %"


def test_one_program_does_what_the_others_do():
    menu, thetas = _simplex()
    for method in menu.methods:
        made = [program(method.loops[0], 7) for program in (alone, together, in_turn)]
        one_by_one = np.stack([made[0](theta) for theta in thetas])
        np.testing.assert_allclose(made[1](thetas), one_by_one, atol=1e-12)
        np.testing.assert_allclose(made[2](thetas), one_by_one, atol=1e-12)


def test_solvers_are_timed_and_those_far_behind_sit_out():
    def after(seconds):
        return lambda: time.sleep(seconds)

    entered = [
        timing.Contender("surestep", "ours", "", 3, after(0.03), after(0.03)),
        timing.Contender("quick", "loop", "", 3, after(0.001), after(0.001)),
        timing.Contender("slow", "library", "", 0.1, after(0.03), None),
    ]
    ours, quick, slow = timing.in_rounds(entered, 2, rounds=2, far=5.0)
    assert len(ours.alone) == len(ours.batch) == len(quick.alone) == 2
    assert slow.alone == [] and slow.first_look is not None
    assert slow.first_look[1] == pytest.approx(2 * slow.first_look[0])
    assert min(ours.alone) >= 0.015
    assert ours.latency is None
    middle, high = timing.latency([after(0.001)] * 9 + [after(0.02)], solves=40)
    assert 0.001 <= middle < 0.02 <= high
