"""`surestep list`: the problems that come along."""

import dataclasses

from surestep.cli.arguments import parse
from surestep.paper import registry


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Print the problems and their presets."""


def main(words: list[str]) -> int:
    """Carry out the command."""
    parse(Arguments, words, "surestep list")
    print_problems()
    return 0


def print_problems() -> None:
    """Print every problem with its presets and their sizes."""
    for name in registry.NAMES:
        print(f"{name}: {registry.summary(name)}")
        for preset, config in registry.presets(name).items():
            print(
                f"  --preset {preset:<6} {config.locate.steps} training steps, "
                f"{config.sample.samples} samples, {config.horizon} iterations, "
                f"{config.sizes.train} train instances"
            )
