"""What users construct says how: its arguments are listed, and its example runs."""

import dataclasses
import inspect
import re
from typing import Any

import pytest

from surestep import interop, rules
from surestep.rules.base import Rule

RULES: dict[str, Any] = {name: getattr(rules, name) for name in rules.__all__}
DOCUMENTED: dict[str, Any] = RULES | {"optax_rule": interop.optax_rule}


@pytest.mark.parametrize("name", DOCUMENTED)
def test_the_example_makes_a_rule(name):
    blocks = re.findall(r"```python\n(.*?)```", inspect.getdoc(DOCUMENTED[name]) or "", re.DOTALL)
    assert blocks
    for block in blocks:
        names: dict[str, Any] = {}
        exec(block, names)
        assert isinstance(names["rule"], Rule)
        if name in RULES and issubclass(RULES[name], Rule):
            assert type(names["rule"]) is RULES[name]


@pytest.mark.parametrize("name", [n for n in RULES if issubclass(RULES[n], Rule)])
def test_every_field_is_listed_and_nothing_else(name):
    documentation = inspect.getdoc(RULES[name]) or ""
    _, _, arguments = documentation.partition("**Arguments:**")
    heads = re.findall(r"^- ((?:`\w+`(?:, )?)+):", arguments, re.MULTILINE)
    listed = [word for head in heads for word in re.findall(r"`(\w+)`", head)]
    assert listed == [field.name for field in dataclasses.fields(RULES[name])]
