"""Benchmarks: what is fitted, stored and compared, and one real measurement."""

import dataclasses
import json
import math
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.cases import block_temporaries
from benchmarks.command import main
from benchmarks.compare import compare, differences, slower
from benchmarks.fit import Exponent, fit_exponent
from benchmarks.measure import ANCHOR, in_rounds
from benchmarks.memory import SMALLEST, measure_peak
from benchmarks.page import exponent, groups, write_page
from benchmarks.records import SCHEMA, Contest, Measured, Speed, Suite, load_suite, save_suite
from benchmarks.suite import run_suite
from benchmarks.transcription import check_transcription
from benchmarks.work import iteration_flops, product_flops
from support import tiny
from surestep.base.errors import ConfigurationError, RunFolderError
from surestep.problem.base import instance
from surestep.storage.records import to_json

SIZES = (100, 200, 400, 800, 1600)


def suite(seed=0, rounds=5, noise=0.03, machine=1.0, slow=(), factor=1.5, power=1.0, **changes):
    """A made-up run: true times times noise, with a round now and then that was disturbed."""
    random = np.random.default_rng(seed)

    def timed(seconds):
        wobble = np.exp(noise * random.normal(size=rounds))
        disturbed = np.where(random.uniform(size=rounds) < 0.1, 1.5, 1.0)
        return (machine * seconds * wobble * disturbed).tolist()

    measured = []
    for stage in ("certify", "locate", "solve"):
        anchor = timed(0.04)
        for size in SIZES:
            seconds = 1e-4 * size**power
            name = f"{stage} instances {size}"
            processor = timed(seconds * (factor if name in slow else 1.0))
            clock = [1.1 * one for one in processor]
            measured.append(Measured(stage, "instances", size, clock, processor, anchor, 1.0))
    found = Suite(SCHEMA, {"jax": "1", "load": str(seed)}, measured, [], [], [], [], [], [])
    return dataclasses.replace(found, **changes)


def test_a_power_law_is_found_exactly():
    found = fit_exponent(SIZES, [3e-5 * size**1.25 for size in SIZES])
    assert found.value == pytest.approx(1.25, abs=1e-12)
    assert found.constant == pytest.approx(3e-5, rel=1e-10)
    assert found.margin < 1e-7
    assert found.at(50) == pytest.approx(3e-5 * 50**1.25)
    assert str(Exponent(1.004, 0.031, 1.0)) == "1.00 ± 0.03"
    assert str(Exponent(-0.004, 0.031, 1.0)) == "0.00 ± 0.03"


def test_the_margin_of_an_exponent_covers_as_often_as_it_says():
    random = np.random.default_rng(1)
    sizes = np.array(SIZES, float)
    found = [
        fit_exponent(SIZES, (sizes**0.9 * np.exp(0.1 * random.normal(size=5))).tolist())
        for _ in range(1000)
    ]
    covered = sum(abs(one.value - 0.9) <= one.margin for one in found)
    assert 925 <= covered <= 975  # binomial, 950 expected: 3.6 standard deviations


@pytest.mark.parametrize(
    ("sizes", "times", "message"),
    [
        ((1, 2), (1.0, 2.0), "three different sizes"),
        ((1, 2, 2), (1.0, 2.0, 2.0), "three different sizes"),
        ((1, 2, 3), (1.0, 2.0), "as many times as sizes"),
        ((1, 2, 3), (1.0, 0.0, 2.0), "positive"),
        ((1, 2, 3), (1.0, math.nan, 2.0), "positive"),
    ],
)
def test_points_without_an_exponent_are_refused(sizes, times, message):
    with pytest.raises(ConfigurationError, match=message):
        fit_exponent(sizes, times)


def flags(repeats, **second):
    """How often each benchmark is flagged, and how many comparisons there were."""
    counts: dict[str, int] = {}
    for seed in range(repeats):
        noise = second.get("noise", 0.03)
        for change in slower(compare(suite(seed, noise=noise), suite(seed + 1000, **second))):
            counts[change.name] = counts.get(change.name, 0) + 1
    return counts


def test_a_planted_slowdown_is_flagged_and_nothing_else():
    planted = ("locate instances 400", "solve instances 1600")
    counts = flags(40, slow=planted)
    others = sum(count for name, count in counts.items() if name not in planted)
    assert min(counts[name] for name in planted) >= 36
    assert others <= 2  # of 520
    back = compare(suite(1000, slow=planted), suite(0))
    assert not slower(back)
    assert {change.name for change in back if change.verdict == "faster"} == set(planted)
    assert {change.name for change in back[-2:]} == set(planted)


@pytest.mark.parametrize(("noise", "most"), [(0.01, 1), (0.03, 2), (0.1, 9)])
@pytest.mark.parametrize("machine", [1.0, 2.5])
def test_noise_and_a_slower_machine_are_no_slowdown(noise, most, machine):
    assert sum(flags(60, noise=noise, machine=machine).values()) <= most  # of 900


def test_times_without_an_anchor_would_mislead():
    """The same two runs, with the second machine at half the speed: the anchor is what tells."""
    fast, halved = suite(1), suite(2, machine=2.0)
    blind = [dataclasses.replace(one, anchor=[1.0] * 5) for one in fast.measured]
    blinded = [dataclasses.replace(one, anchor=[1.0] * 5) for one in halved.measured]
    assert not slower(compare(fast, halved))
    changes = compare(suite(1, measured=blind), suite(2, machine=2.0, measured=blinded))
    assert len(slower(changes)) == 15


def test_runs_with_nothing_in_common_and_other_machines():
    with pytest.raises(ConfigurationError, match="no benchmark in common"):
        compare(suite(), suite(measured=[]))
    other = suite(made_with={"jax": "2", "load": "9"})
    assert differences(suite(), other) == ["jax: 1 then, 2 now"]


def test_a_stored_file_is_read_back(tmp_path):
    speed = Speed("s", "step", 5, "float64", [1.0], [1.0], [0.5], math.nan, 2.0, [], 1e9, "fast")
    contest = Contest("q", "tiny", "0.01", "learned", math.inf, 1e-4, 3, 64)
    whole = suite(speeds=[speed], contests=[contest], notes=["no pictures"])
    save_suite(whole, tmp_path / "bench.json")
    found = load_suite(tmp_path / "bench.json")
    assert to_json(found) == to_json(whole)
    assert found.measured == whole.measured
    assert found.contests == whole.contests
    assert math.isnan(found.speeds[0].product_share)
    assert found.speeds[0].program_share == 2.0 / 1.0 / 1e9


def damaged(change: Any) -> str:
    plain = json.loads(to_json(suite()))
    change(plain)
    return json.dumps(plain)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read"),
        ("[]", "schema"),
        (damaged(lambda p: p.update(schema=99)), "schema is 99"),
        (damaged(lambda p: p.pop("peaks")), "peaks is missing"),
        (damaged(lambda p: p["measured"][0].update(size="7")), "size should be of type int"),
        (damaged(lambda p: p["measured"][3]["anchor"].pop()), "rounds of 'certify instances 800'"),
        (damaged(lambda p: p["measured"][0]["processor"].__setitem__(0, 0.0)), "make no sense"),
    ],
)
def test_a_damaged_file_is_refused(text, message, tmp_path, capsys):
    save_suite(suite(), tmp_path / "good.json")
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(RunFolderError, match=message):
        load_suite(tmp_path / "bad.json")
    arguments = ["--compare", str(tmp_path / "good.json"), str(tmp_path / "bad.json")]
    assert main(arguments) == 4
    assert "bad.json" in capsys.readouterr().err


def test_comparing_on_the_command_line(tmp_path, capsys):
    old, new, slow = (str(tmp_path / f"{name}.json") for name in ("old", "new", "slow"))
    for path, made in (
        (old, suite(1)),
        (new, suite(2)),
        (slow, suite(3, slow=("solve instances 100",))),
    ):
        save_suite(made, tmp_path / path)
    assert main(["--compare", old, new]) == 0
    assert "none of 15 benchmarks is slower" in capsys.readouterr().out
    assert main(["--compare", old, slow]) == 5
    told = capsys.readouterr()
    assert "1 of 15 benchmarks are slower beyond noise: solve instances 100" in told.err
    assert told.out.splitlines()[0].startswith("slower solve instances 100: 1.")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--only", "certfy"], 2, "did you mean 'certify'"),
        (["--compare", "a.json"], 2, "expected 2 arguments"),
        (["--compare", "a.json", "b.json", "--quick"], 2, "no other option"),
        (["--compare", "a.json", "b.json"], 4, "a.json cannot be read"),
        (["--fast"], 2, "unrecognized arguments: --fast"),
        (["--only", "split", "--out", "file"], 4, "file cannot be a folder"),
    ],
)
def test_wrong_arguments(arguments, code, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    assert main(arguments) == code
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_the_package_is_run_from_the_root_of_the_source_tree():
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "benchmarks", "--quik"]
    ended = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr == (
        "surestep: unrecognized arguments: --quik; did you mean --quick? "
        "(python -m benchmarks --help)\n"
    )


def test_everything_is_timed_in_turns():
    order = []
    calls = {name: lambda name=name: order.append(name) or time.sleep(0.025) for name in "abc"}
    timed = in_rounds(calls, 3)
    warm, rest = order[:6], order[6:]
    assert warm == list("aabbcc")
    assert rest == [*"abc", *"cba", *"abc"]
    assert {name: len(spells) for name, spells in timed.items()} == {ANCHOR: 3} | dict.fromkeys(
        "abc", 3
    )
    for one in timed["b"]:
        # Sleeping is time on the clock alone; multiplying is not.
        assert one.seconds >= 0.025 and one.processor < 0.01
    assert all(one.processor > 0 for one in timed[ANCHOR])


def test_operations_are_counted_from_shapes():
    def program(a, b, picture, kernel):
        product = jnp.einsum("nij,njk->nik", a, b)  # 3 times 4 x 5 by 5 x 6
        layout = ("NHWC", "HWIO", "NHWC")
        filtered = jax.lax.conv_general_dilated(
            picture, kernel, (1, 1), "VALID", dimension_numbers=layout
        )
        looped, _ = jax.lax.scan(
            lambda x, _: (jnp.tanh(a[0] @ a[0].T @ x), None), b[0, :4], length=7
        )
        return jnp.sum(product), filtered, looped

    shapes = [(3, 4, 5), (3, 5, 6), (1, 9, 8, 2), (3, 3, 2, 10)]
    traced = jax.make_jaxpr(program)(*(jnp.zeros(shape) for shape in shapes))
    products = 2 * 3 * 4 * 5 * 6
    convolution = 2 * (7 * 6 * 10) * (3 * 3 * 2)
    loop = 7 * (2 * 4 * 4 * 5 + 2 * 4 * 4 * 6)
    assert product_flops(traced.jaxpr) == products + convolution + loop


def test_an_iteration_of_the_papers_rule_takes_what_the_paper_draws():
    theta = instance(tiny.SPLIT.prior.thetas, 0)
    products, program = iteration_flops(tiny.RULE, tiny.PROBLEM, theta)
    direction, scale = 3 * 16 + 16 * 16 + 16 * 16 + 16, 4 * 8 + 8 * 8 + 8 * 8 + 8
    n = tiny.CONFIG.problem.dimension
    assert products == 2 * (n * direction + scale)
    assert products < program < 1.5 * products


def test_the_transcription_computes_the_same_and_an_altered_one_does_not(monkeypatch):
    thetas = tiny.SPLIT.prior.thetas
    rule: Any = tiny.RULE
    problem: Any = tiny.PROBLEM
    check_transcription(rule, problem, thetas)
    monkeypatch.setattr(np, "log1p", np.sqrt)
    with pytest.raises(AssertionError):
        check_transcription(rule, problem, thetas)


def test_memory_does_not_grow_beyond_a_block():
    few, block, many = (one.temporary_bytes for one in block_temporaries((16, 64, 512), 64))
    assert block > 3 * few
    assert many < 1.15 * block


def test_a_process_does_not_keep_what_it_has_drawn():
    peak = measure_peak(4 * SMALLEST)
    assert peak.set_bytes == 4 * SMALLEST * 400 * 8
    assert peak.peak_bytes >= peak.before_bytes > 100 * 2**20
    assert peak.peak_bytes - peak.before_bytes < peak.set_bytes / 3


def test_the_page_says_which_promises_are_kept(tmp_path):
    good, bad = suite(noise=0.0), suite(noise=0.0, power=1.3)
    renamed = [dataclasses.replace(one, stage="bad") for one in bad.measured[:5]]
    whole = suite(measured=[*good.measured, *renamed])
    text = write_page(whole, tmp_path).read_text()
    rows = {line.split(" | ")[0]: line for line in text.splitlines() if line.startswith("| ")}
    assert "| 1 | yes |" in rows["| certify"]
    assert "| 1.30 ± " in rows["| bad"] and "| 1 | **no** |" in rows["| bad"]
    assert (tmp_path / "bench-scaling.png").read_bytes()[:4] == b"\x89PNG"
    assert "bench-memory.png" not in text


def test_one_part_for_real(tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["--quick", "--only", "split", "--out", str(out)]) == 0
    assert f"results: {out / 'bench.json'}" in capsys.readouterr().out
    found = load_suite(out / "bench.json")
    assert [one.name for one in found.measured] == [
        f"split instances {size}" for size in (8192, 16384, 32768)
    ]
    assert all(len(one.processor) == 3 for one in found.measured)
    [(_, _, points)] = groups(found)
    # Wide, for busy machines: neither independent of the size nor quadratic.
    assert 0.6 < exponent(points).value < 1.5
    assert found.made_with["sizes"] == "quick" and found.made_with["jax"] == jax.__version__
    assert "| split | instances | 8192 to 32768 |" in (out / "benchmarks.md").read_text()
    # A run agrees with itself, and not with one that takes far longer.
    assert not slower(compare(found, found))
    longer = [
        dataclasses.replace(one, processor=[2.5 * t for t in one.processor])
        for one in found.measured
    ]
    assert len(slower(compare(found, dataclasses.replace(found, measured=longer)))) == 3


def test_unknown_parts_are_refused_before_anything_is_measured():
    with pytest.raises(ConfigurationError, match="known are split, imitate"):
        run_suite(only=("split", "speeed"))
