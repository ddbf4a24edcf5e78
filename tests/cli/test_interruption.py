"""Signals to stop wait for JAX, and the second one does not."""

import os
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import pytest

from surestep.cli.interruption import stopping_safely


@pytest.fixture(autouse=True)
def heard():
    """Tests that a shell has started in the background ignore Ctrl-C; these must not."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_jax_traces_is_put_off(number):
    happened = []

    @jax.jit
    def traced(x):
        os.kill(os.getpid(), number)
        time.sleep(0.01)  # Python looks at its signals
        happened.append("traced")
        return x + 1

    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), stopping_safely():
        assert traced(jnp.zeros(())) == 1
        happened.append("called")
        time.sleep(5)
        happened.append("slept")
    assert happened == ["traced", "called"]
    assert signal.getsignal(number) is before
    # Nothing rings later.
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_a_signal_elsewhere_stops_at_once():
    with pytest.raises(KeyboardInterrupt), stopping_safely():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)


def test_the_second_signal_ends_the_process():
    code = """
import os, signal, time, types
from surestep.cli.interruption import stopping_safely
jax = types.ModuleType("jax.busy")
source = "def work(do):\\n    do()\\n    time.sleep(20)"
jax.time = time
exec(source, vars(jax))
def twice():
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.2)
with stopping_safely():
    jax.work(twice)
"""
    command = [sys.executable, "-c", code]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=15)
    assert ended.returncode == 130
    assert ended.stderr == "surestep: stopped at once; the same command goes on from here\n"
