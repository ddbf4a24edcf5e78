"""Names that were mistyped."""

import difflib


def unknown(kind: str, name: str, known: tuple[str, ...]) -> str:
    """Say that there is no such name, and which ones are near."""
    near = difflib.get_close_matches(name, known, n=2, cutoff=0.5)
    hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    return f"there is no {kind} called {name!r}: {hint}known are {', '.join(known)}"
