"""Signals to stop wait for JAX, but not long; the second one does not wait."""

import os
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import pytest

from surestep.cli import interruption
from surestep.cli.interruption import stopping_safely

STOPS = (signal.SIGTERM, signal.SIGINT)


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """However slow the machine is, the process that tests is not ended."""
    monkeypatch.setattr(interruption, "_GRACE", 60.0)


@pytest.fixture(autouse=True)
def heard():
    """Tests that a shell has started in the background ignore Ctrl-C; these must not."""
    before = {number: signal.getsignal(number) for number in STOPS}
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", STOPS)
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


def command(code: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def stopped(process: subprocess.Popen[str], number: int) -> tuple[float, str]:
    """How long it takes after a signal until the process ends, and what it says."""
    began = time.monotonic()
    process.send_signal(number)
    try:
        said = process.communicate(timeout=20)[1]
    finally:
        process.kill()
    return time.monotonic() - began, said


def test_the_second_signal_ends_the_process():
    code = """
import os, signal, time, types
from surestep.cli import interruption
interruption._GRACE = 60.0
jax = types.ModuleType("jax.busy")
source = "def work(do):\\n    do()\\n    time.sleep(20)"
jax.time = time
exec(source, vars(jax))
def twice():
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.2)
with interruption.stopping_safely():
    jax.work(twice)
"""
    command = [sys.executable, "-c", code]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=15)
    assert ended.returncode == 143
    assert ended.stderr == "surestep: interrupted; the same command goes on from here\n"


@pytest.mark.parametrize("number", STOPS)
def test_a_compiled_program_does_not_keep_the_process(number, tmp_path):
    """The loss of this problem takes minutes, inside one program."""
    (tmp_path / "slow.py").write_text(f"""
import jax, jax.numpy as jnp, numpy as np, pathlib
import surestep as ss

def here(x):
    pathlib.Path({str(tmp_path / "here")!r}).touch()
    return np.zeros((), np.int32)

def loss(x, theta):
    first = jax.pure_callback(here, jax.ShapeDtypeStruct((), jnp.int32), theta)
    last = jax.lax.while_loop(lambda i: i < 2**31 - 1, lambda i: i + (theta > -50), first)
    return jnp.sum((x - theta) ** 2) + 0.0 * jax.lax.stop_gradient(last)

problem = ss.make_problem(loss, jnp.zeros(3), sample=lambda key: jax.random.normal(key))
""")
    folder = tmp_path / "run"
    folder.mkdir()
    words = ["run", str(tmp_path / "slow.py"), "--out", str(folder)]
    process = command(f"""
import sys
from surestep.cli.main import start
sys.argv[1:] = {words!r}
start()
""")
    limit = time.monotonic() + 60
    while not (tmp_path / "here").exists():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < limit
        time.sleep(0.05)
    time.sleep(0.3)
    took, said = stopped(process, number)
    assert process.returncode == 128 + number, said
    assert said.endswith(
        f"surestep: interrupted; the same command goes on with what is finished in {folder}\n"
    )
    assert took < 2


def test_the_compiler_does_not_keep_the_process():
    process = command("""
import jax, jax.numpy as jnp, sys
from surestep.cli.interruption import stopping_safely
def many(x):
    for i in range(400):
        x = jnp.linalg.solve(x @ x + jnp.eye(5), jnp.sin(x) * i)
    return x
with stopping_safely():
    lowered = jax.jit(many).lower(jnp.ones((5, 5)))
    print("compiling", flush=True)
    lowered.compile({"xla_backend_optimization_level": 3})
    print("compiled", flush=True)
""")
    assert process.stdout is not None
    assert process.stdout.readline() == "compiling\n"
    time.sleep(0.2)
    took, said = stopped(process, signal.SIGINT)
    assert process.returncode == 130, said
    assert "the same command goes on" in said
    assert took < 2


def test_the_terminal_gets_its_cursor_back():
    import pty  # noqa: PLC0415

    controller, terminal = pty.openpty()
    code = """
import time, types
from surestep.cli.interruption import stopping_safely
jax = types.ModuleType("jax.busy")
jax.time = time
exec("def work():\\n    print('busy', flush=True)\\n    time.sleep(20)", vars(jax))
with stopping_safely():
    jax.work()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=terminal, stderr=terminal, start_new_session=True
    )
    os.close(terminal)
    assert b"busy" in os.read(controller, 100)
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 130
    shown = os.read(controller, 1000).decode()
    assert "\x1b[?25h\r\nsurestep: interrupted" in shown


def test_a_goodbye_that_takes_long_is_waited_for_but_not_for_ever():
    code = """
import os, signal, sys, time
from surestep.cli import interruption
interruption._GRACE, interruption._FAREWELL = 0.1, float(sys.argv[1])
with interruption.stopping_safely():
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(20)
    except KeyboardInterrupt as error:
        print(interruption.farewell(), file=sys.stderr)
        time.sleep(1)
        sys.exit(interruption.exit_code(error) + 1)
"""
    for patience, wanted in (("30", 131), ("0.2", 130)):
        ended = subprocess.run(
            [sys.executable, "-c", code, patience], capture_output=True, text=True, timeout=20,
            check=False,
        )  # fmt: skip
        assert ended.returncode == wanted
        assert ended.stderr == "surestep: interrupted; the same command goes on from here\n"
