"""Results of stages, compared bit for bit."""

import dataclasses
from typing import Any

import numpy as np


def assert_same(found: Any, expected: Any) -> None:
    """Two results have the same fields with the same bits, those of their parts among them."""
    assert type(found) is type(expected)
    for name, value in vars(expected).items():
        if dataclasses.is_dataclass(value):
            assert_same(getattr(found, name), value)
        else:
            np.testing.assert_array_equal(getattr(found, name), value, err_msg=name)
