"""The paper's small figures."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from surestep.base.progress import Silence
from surestep.cli.main import main
from surestep.paper.figures import sampling
from surestep.paper.figures.choices import CHOICES, design_choices
from surestep.paper.figures.estimation import estimation


def test_the_estimate_ends_when_its_quantiles_are_close():
    figure = estimation(0, Silence())
    ends = []
    for panel in figure.panels:
        density = panel.lines[0]
        assert np.trapezoid(density.y, density.x) == pytest.approx(1, abs=1e-2)
        low, high, truth = (mark.x for mark in panel.marks)
        assert truth == 0.8
        ends.append(high - low)
        successes, trials = (int(word) for word in panel.title.split(" succeeded")[0].split(" of "))
        posterior = stats.beta(1 + successes, 1 + trials - successes)
        assert posterior.cdf([low, high]) == pytest.approx([0.05, 0.95])
    assert ends[-1] < 0.15
    assert all(width >= 0.15 for width in ends[:-1])


def test_the_toy_is_the_papers():
    u = np.array([[1.0, -1.0], [1.6, 0.0], [0.2, 0.4], [0.0, -0.5], [1.0, 0.2]])
    by_hand = [1.0, 0.0, 0.0, 0.0, 1 - np.cos(2) - np.sin(0.7)]
    assert sampling.probability(u) == pytest.approx(by_hand)
    assert float(sampling.potential(jnp.array([1.0, 2.0]))) == pytest.approx(4.5)


def test_the_chain_keeps_to_the_constraint_and_follows_the_potential():
    # Longer steps than the figure's: a short chain gets around.
    chain = sampling.run_chain(1, 3000, Silence(), step=0.05)
    good = sampling.probability(chain.proposals) >= 0.6
    wrong = np.mean(chain.accepted != good)
    assert 0 < wrong < 0.1
    # Errors are made near the boundary, where trying cannot tell.
    near = sampling.probability(chain.proposals[chain.accepted != good])
    assert np.all(np.abs(near - 0.6) < 0.1)
    np.testing.assert_array_equal(chain.positions[chain.accepted], chain.proposals[chain.accepted])

    # A mean under the constrained density, by summing over a grid.
    axis = np.linspace(-1.5, 1.5, 601)
    first, second = np.meshgrid(axis, axis)
    u = np.stack([first, second], axis=-1)
    density = np.exp(-0.5 * (first + 0.5 * second + 0.5 * first * second) ** 2)
    density *= sampling.probability(u) >= 0.6
    mean = np.sum(density * first) / np.sum(density)
    assert chain.positions[200:, 0].mean() == pytest.approx(mean, abs=0.1)


def test_choices_are_compared_on_equal_terms():
    figure = design_choices(0, Silence(), "tiny")
    ours = [line for line in figure.panels[0].lines if line.group == next(iter(CHOICES))]
    again = [line for line in figure.panels[1].lines if line.group == next(iter(CHOICES))]
    assert ours == again
    assert len({tuple(line.y) for panel in figure.panels for line in panel.lines}) == 6
    starts = [line.y[0] for panel in figure.panels for line in panel.lines]
    assert len({round(start, 6) for start in starts}) == 2  # a mean and a median


def test_from_the_command_line(tmp_path, capsys):
    assert main(["figure", "estimation", "--out", str(tmp_path)]) == 0
    assert json.loads((tmp_path / "estimation.json").read_text())["name"] == "estimation"
    assert (tmp_path / "estimation.png").exists()
    assert main(["figure", "samplin", "--out", str(tmp_path)]) == 2
    assert "did you mean 'sampling'" in capsys.readouterr().err
    assert main(["figure", "experiments"]) == 2
    assert "--runs" in capsys.readouterr().err
    assert main(["figure", "experiments", "--runs", str(tmp_path)]) == 4
    assert "holds no run" in capsys.readouterr().err
