"""What the profiles of stages say of a recording."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

PATH = Path(__file__).parents[2] / "benchmarks" / "profiles.py"


@pytest.fixture(scope="module")
def profiles() -> Any:
    spec = importlib.util.spec_from_file_location("profiles", PATH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_an_operation_is_not_charged_for_those_inside_it(profiles):
    events = [
        (0.0, -10.0, "while.1"),
        (1.0, -4.0, "call.2"),
        (2.0, -1.0, "dot.3"),
        (6.0, -2.0, "x"),
    ]
    assert profiles.own_times(events) == [4.0, 3.0, 1.0, 2.0]


def test_time_in_which_several_are_at_work_counts_once(profiles):
    assert profiles.covered([(5e9, 6e9), (0.0, 2e9), (1e9, 3e9), (1e9, 1.5e9)]) == 4.0


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ynn_fusion", "products"),
        ("chain", "products"),
        ("sm90_xmma_gemm_f64f64", "products"),
        ("conv_general_dilated", "convolutions"),
        ("convert_fusion", "elementwise"),
        ("ThunkExecutor::Execute", "loops"),
        ("while", "loops"),
        ("memcpy32_post", "copies"),
        ("MemcpyD2D", "copies"),
        ("copy", "copies"),
        ("loop_add_fusion", "elementwise"),
    ],
)
def test_operations_are_known_by_their_names(profiles, name, kind):
    assert profiles.kind(name) == kind
