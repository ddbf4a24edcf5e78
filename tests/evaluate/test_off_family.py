"""Off the family: the right instances, the same loss, and every problem's shifts."""

import dataclasses

import numpy as np
import pytest

from support.tiny import CONFIG, EXPERIMENT, PROBLEM, RULE, TASK, changed
from surestep import paper
from surestep.base.errors import ConfigurationError
from surestep.base.keys import named_key
from surestep.evaluate.off_family import UNSHIFTED, evaluate_shifted, require_same_form
from surestep.evaluate.test_set import EvaluateSettings
from surestep.paper import deblurring, digits, image, lasso, mnist, network, photographs, quadratics
from surestep.problem.base import instance
from surestep.problem.draw import draw
from surestep.report.draw import draw as draw_figure
from surestep.report.draw import save_figure
from surestep.report.figures import Figure, Line, Panel, Points, shifted_figure
from surestep.report.summary import _shifted_table
from surestep.rollout.loop import rollout

SOLVERS = {"learned": RULE, "heavy ball": EXPERIMENT.baselines["heavy ball"]}
FOUND = evaluate_shifted(EXPERIMENT.shifts, TASK, SOLVERS, 5, 0)


def test_every_solver_runs_on_every_shift_and_on_the_family_itself():
    assert FOUND.shifts == [UNSHIFTED, *EXPERIMENT.shifts]
    assert FOUND.solvers == ["learned", "heavy ball"]
    assert FOUND.losses.shape == (4, 2, 5, CONFIG.horizon + 1)
    for s, name in enumerate(FOUND.shifts):
        problem = EXPERIMENT.shifts.get(name, PROBLEM)
        thetas = draw(problem, 5, named_key(0, "shifted", name))
        theta = instance(thetas, 3)
        for k, rule in enumerate(SOLVERS.values()):
            single = rollout(rule, PROBLEM, theta, CONFIG.horizon).losses
            np.testing.assert_allclose(FOUND.losses[s, k, 3], single, rtol=1e-7)


def test_goals_are_those_of_the_shifted_instances():
    # The tiny goal is the start's loss itself.
    np.testing.assert_allclose(FOUND.thresholds, FOUND.losses[:, 0, :, 0])
    final = FOUND.losses[:, :, :, -1]
    np.testing.assert_array_equal(FOUND.successes(), final <= FOUND.thresholds[:, None])


def test_a_loss_that_is_not_finite_is_no_success():
    lost = FOUND.losses.copy()
    lost[1, 0, 2, -1] = np.inf
    found = dataclasses.replace(
        FOUND, losses=lost, thresholds=np.full_like(FOUND.thresholds, np.inf)
    )
    assert not found.successes()[1, 0, 2]
    assert found.successes().sum() == found.successes().size - 1


def test_the_table_and_the_figure_say_that_nothing_is_certified():
    text = "\n".join(_shifted_table(FOUND))
    assert "no certificate holds" in text
    figure = shifted_figure(FOUND, "quadratics")
    assert "no certificate holds" in figure.title
    assert [panel.title for panel in figure.panels] == FOUND.shifts
    for name in FOUND.shifts:
        assert name in text
    median = np.median(FOUND.losses[2, 1, :, -1])
    assert f"{median:.3g}/" in text
    reached = FOUND.successes()[2, 1].sum()
    assert f"{reached} of 5" in text


def test_instances_of_another_form_are_refused():
    other = quadratics.Quadratics.create(quadratics.QuadraticsSettings(dimension=9), 0)
    with pytest.raises(ConfigurationError, match=r"shift 'longer' have another form"):
        require_same_form(PROBLEM, {"longer": other})
    with pytest.raises(ConfigurationError, match="may not be called"):
        require_same_form(PROBLEM, {UNSHIFTED: PROBLEM})
    with pytest.raises(ConfigurationError, match=r"evaluate\.shifted"):
        EvaluateSettings(shifted=-1).validate()


def drawn(shifts, name, number=200):
    return draw(shifts[name], number, named_key(0, "data"))


def test_quadratics_are_shifted_as_their_names_say():
    problem = quadratics.Quadratics.create(CONFIG.problem, 0)
    shifts = quadratics.shifts(problem)
    plain = draw(problem, 200, named_key(0, "data"))
    steep = drawn(shifts, "ten times the condition number")
    np.testing.assert_allclose(steep.diagonal[:, 0] ** 2, plain.diagonal[:, 0] ** 2 / 10)
    np.testing.assert_allclose(steep.diagonal[:, -1], plain.diagonal[:, -1])
    large = drawn(shifts, "twice the largest eigenvalue")
    np.testing.assert_allclose(large.diagonal[:, -1] ** 2, 2 * plain.diagonal[:, -1] ** 2)
    far = drawn(shifts, "five times the right-hand side")
    np.testing.assert_allclose(far.target, 5 * plain.target)


def test_lassos_are_shifted_as_their_names_say():
    problem = lasso.Lasso.create(lasso.TINY.problem, 0)
    shifts, plain = lasso.shifts(problem), draw(problem, 200, named_key(0, "data"))
    for name, factor in (("a quarter of the weights", 0.25), ("four times the weights", 4.0)):
        found = drawn(shifts, name)
        np.testing.assert_allclose(found.weight, factor * plain.weight)
        np.testing.assert_array_equal(found.target, plain.target)
    far = drawn(shifts, "five times the right-hand side")
    np.testing.assert_allclose(far.target, 5 * plain.target)


def test_networks_are_shifted_as_their_names_say():
    problem = network.NetworkTraining.create(network.TINY.problem, 0)
    shifts, plain = network.shifts(problem), draw(problem, 50, named_key(0, "data"))
    wide = drawn(shifts, "half again the interval", 50)
    np.testing.assert_allclose(wide.inputs, 1.5 * plain.inputs)
    large = drawn(shifts, "three times the coefficients", 50)
    np.testing.assert_allclose(large.coefficients, 3 * plain.coefficients)
    noise = problem.truth_losses(drawn(shifts, "five times the noise", 50))
    np.testing.assert_allclose(noise, 25 * problem.truth_losses(plain), rtol=1e-6)


def test_pictures_are_shifted_as_their_names_say():
    settings = image.TINY.problem
    pool = photographs.load("", settings.height, settings.width, settings.shorter_side)
    problem = deblurring.Deblurring.create(settings, pool)
    shifts, plain = deblurring.shifts(problem), draw(problem, 8, named_key(0, "data"))
    clean = drawn(shifts, "no noise", 8)
    np.testing.assert_array_equal(clean.original, plain.original)
    np.testing.assert_allclose(clean.observed[0], deblurring.blur(clean.original[0]), atol=1e-6)
    heavy = drawn(shifts, "three times the weights", 8)
    np.testing.assert_allclose(heavy.weight, 3 * plain.weight, rtol=1e-6)
    loud = drawn(shifts, "three times the noise", 8)
    apart = [np.std(np.asarray(t.observed - clean.observed)) for t in (plain, loud)]
    assert 1.8 < apart[1] / apart[0] <= 3.0, "less than three times, because of the clipping"


def test_digits_are_shifted_as_their_names_say():
    stock = digits.open_stock(digits.BUNDLED)
    problem = mnist.Mnist.create(mnist.TINY.problem, stock, 0)
    shifts = mnist.shifts(problem)
    few = np.asarray(drawn(shifts, "ten images, repeated"))
    assert set(few.ravel().tolist()) == set(range(10))
    low = np.asarray(problem.labels)[np.asarray(drawn(shifts, "digits 0 to 4 only"))]
    assert set(low.ravel().tolist()) == {0, 1, 2, 3, 4}
    pair = np.asarray(problem.labels)[np.asarray(drawn(shifts, "ones and sevens only"))]
    assert set(pair.ravel().tolist()) == {1, 7}
    require_same_form(problem, shifts)


@pytest.mark.parametrize("name", ["lasso", "network", "quadratics"])
def test_every_experiment_knows_shifts_that_fit(name):
    experiment = paper.build(paper.preset(name, "tiny"))
    assert len(experiment.shifts) >= 3
    require_same_form(experiment.problem, experiment.shifts)


def test_shifts_of_a_rotated_family_are_rotated_too():
    settings = changed(CONFIG.problem, rotated=True)
    problem = quadratics.Quadratics.create(settings, 0)
    for shifted in quadratics.shifts(problem).values():
        np.testing.assert_array_equal(shifted.basis, problem.basis)
    assert problem.basis is not None


def test_losses_near_the_largest_number_are_drawn_without_a_warning(tmp_path):
    line = Line("diverging", "classical", [1.0, 2.0, 3.0], [1.0, 1e30, 4.96e306])
    dots = Points("far away", "classical", [2.0], [1e308], 5.0)
    panel = Panel("shifted", "x", "loss", y_scale="log", lines=[line], points=[dots])
    figure = Figure("far", "far", ["classical"], [panel])
    assert {path.suffix for path in save_figure(figure, tmp_path)} == {".json", ".png", ".svg"}
    (axes,) = draw_figure(figure).axes
    assert axes.get_ylim()[1] < 1e250
