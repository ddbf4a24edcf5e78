"""How tests are run: all of them or the quick ones, how they compile, where they share things.

Imported before JAX, which reads its environment once. Processes that a test starts inherit it.
"""

import os
import tempfile

ALL = os.environ.get("SURESTEP_TESTS", "") == "all"
"""`make test-all`: every test, every repeat, and programs compiled as users compile them."""

QUICK_COMPILING = (
    "--xla_backend_optimization_level=0",
    "--xla_cpu_use_fusion_emitters=false",
    "--xla_cpu_parallel_codegen_split_count=1",
)
"""Most of the time of a test goes into compiling; programs that are less optimized take a third of
it. No test compares bits with stored ones, so any compiler will do."""

KNOWS_THE_FLAGS = "0.10."
"""The version of JAX that they are known to: XLA ends a process that gives it another flag."""

SHARED = "SURESTEP_TESTS_SHARED"
"""Where the folder that all processes of a test run share is, in their environment."""


def prepare(version: str) -> None:
    """Set the environment of this process and of those it starts."""
    # All processes of a test run share a folder: the first one makes it, the others find it in
    # their environment.
    if SHARED not in os.environ:
        folder = tempfile.TemporaryDirectory(prefix="surestep-tests-")
        _kept.append(folder)
        os.environ[SHARED] = folder.name
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        os.environ["JAX_COMPILATION_CACHE_DIR"] = f"{os.environ[SHARED]}/compiled"
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"
    if not ALL and version.startswith(KNOWS_THE_FLAGS):
        given = os.environ.get("XLA_FLAGS", "").split()
        wanted = [flag for flag in QUICK_COMPILING if flag not in given]
        os.environ["XLA_FLAGS"] = " ".join([*given, *wanted])
    # Nothing is measured before a run: times would decide about the last bits.
    os.environ.setdefault("SURESTEP_CACHE", "off")


_kept: list[tempfile.TemporaryDirectory[str]] = []


def repeats(all_of_them: int, quick: int) -> int:
    """How often something random is tried."""
    return all_of_them if ALL else quick
