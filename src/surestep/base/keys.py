"""Random keys by name.

Every draw in a run comes from a key made of the seed and of names (the stage, the chunk), never
from a key that is handed on. A run that stops and goes on later therefore draws what it would
have drawn without the stop.
"""

import hashlib

import jax


def named_key(seed: int, *names: str | int) -> jax.Array:
    """The key that belongs to a seed and a path of names.

    **Example:** `named_key(0, "locate", 17)` is the key of the 18th chunk of locating.
    """
    key = jax.random.key(seed)
    for name in names:
        key = jax.random.fold_in(key, name if isinstance(name, int) else _word(name))
    return key


def _word(name: str) -> int:
    # Python's own hash of a string changes from process to process.
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
