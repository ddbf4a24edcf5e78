"""Several processes, on one machine or on many, that compute the tiles of one run together.

Process 0 leads: it trains, writes the run folder and issues the certificate. The others only roll
out. Every process takes tiles from one counter, as fast as it can, and hands what it has seen to
process 0; both go through the key-value store of JAX's coordination service, so hosts need no
folder in common and no other port. Each tile is computed by one device alone: which process that
is, and how many there are, changes no bit.
"""

import dataclasses
import json
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
import safetensors.numpy

# JAX has no public name for its key-value store; other libraries use it like this too.
from jax._src.distributed import global_state

from surestep.base.errors import ConfigurationError, HostError
from surestep.problem import TrainSet
from surestep.rollout.observe import Observed
from surestep.rollout.tiles import Alone, Work
from surestep.storage.records import to_plain

PATIENCE = 60.0
"""After so many seconds without a sign of life a process counts as lost."""

_BACKSTOP = 3600
"""After so many seconds JAX itself ends the processes of a run that has lost one."""

_FAREWELL = 10.0
"""For so many seconds process 0 waits until the others have heard that it is over."""

_SPAN = 0.5
"""For about so many seconds of work a process takes tiles at a time."""

_PART = 4 * 2**20
"""Notes are stored in parts of so many bytes."""


_GOES_ON = (
    "What is done is kept in the run's folder: once the cause is mended, the same command goes on "
    "from there, with fewer processes too"
)


@dataclasses.dataclass(frozen=True)
class Joining:
    """How a process finds the others. What is not said is left to JAX's own detection."""

    coordinator: str | None = None
    """Address and port of process 0, like `10.0.0.1:8476`."""
    processes: int | None = None
    process: int | None = None
    """Which of them this is; process 0 leads."""
    patience: float = PATIENCE

    def validate(self) -> None:
        """Refuse what cannot work, before anyone is waited for."""
        if not self.patience > 0:
            raise ConfigurationError(f"--patience must be positive, not {self.patience:g}")
        said = (self.coordinator, self.processes, self.process)
        if said == (None, None, None):
            return
        if self.coordinator is None or self.processes is None or self.process is None:
            raise ConfigurationError(
                "--coordinator, --processes and --process go together (or --distributed auto)"
            )
        host, _, port = self.coordinator.rpartition(":")
        if not (host and port.isascii() and port.isdigit() and 0 < int(port) < 2**16):
            raise ConfigurationError(
                f"--coordinator must be an address and a port, like 10.0.0.1:8476, not "
                f"{self.coordinator!r}"
            )
        if not 0 <= self.process < self.processes:
            raise ConfigurationError(
                f"--process must be one of 0 to {self.processes - 1} (--processes "
                f"{self.processes}), not {self.process}"
            )


def join(joining: Joining, wait: int = 300) -> "Board":
    """Meet the other processes; none goes on before all are there. Comes before any computation."""
    joining.validate()
    said = joining.coordinator is not None
    # It would catch SIGTERM for itself, and the process would not stop.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        jax.distributed.initialize(
            joining.coordinator,
            joining.processes,
            joining.process,
            cluster_detection_method="deactivate" if said else None,
            initialization_timeout=wait,
            heartbeat_timeout_seconds=_BACKSTOP,
            shutdown_timeout_seconds=30,
        )
        # Making the backend is something that all processes do together.
        jax.local_devices()
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise HostError(f"the processes of the run have not found each other: {reason}") from error
    return Board(joining.patience)


class Board:
    """Notes that processes leave for each other, and signs of life."""

    def __init__(self, patience: float) -> None:
        assert global_state.client is not None
        self._client: Any = global_state.client
        self.process, self.processes = jax.process_index(), jax.process_count()
        self._patience, self._began = patience, time.monotonic()
        self._heard: dict[str, tuple[bytes, float]] = {}
        self._ending = threading.Event()
        self._alive = threading.Thread(target=self._live, daemon=True)
        self._alive.start()

    def close(self) -> bool:
        """Give no more signs of life; returns whether that has ended in time.

        A thread that is inside JAX's client while Python ends would take the process down with it.
        """
        self._ending.set()
        self._alive.join(_FAREWELL)
        return not self._alive.is_alive()

    def put(self, name: str, content: bytes) -> None:
        """Leave a note."""
        parts = [content[i : i + _PART] for i in range(0, len(content), _PART)]
        for number, part in enumerate(parts):
            self._client.key_value_set_bytes(f"parts/{name}/{number}", part)
        self._client.key_value_set_bytes(name, str(len(parts)).encode())

    def get(self, name: str) -> bytes | None:
        """A note, if it is there."""
        number = self._try(name)
        if number is None:
            return None
        return self._parts(name, number)

    def _parts(self, name: str, number: bytes) -> bytes:
        return b"".join(self._try(f"parts/{name}/{i}") or b"" for i in range(int(number)))

    def wait(self, *names: str) -> tuple[str, bytes]:
        """The first of some notes that is there; process 0 must be alive until then."""
        while True:
            for name in names:
                content = self.get(name)
                if content is not None:
                    return name, content
            self.require_alive(0)
            time.sleep(0.1)

    def take(self, folder: str) -> Iterator[bytes]:
        """Take away all notes of a folder."""
        for name, number in self._client.key_value_dir_get_bytes(folder):
            content = self._parts(name, number)
            self._client.key_value_delete(name)
            for i in range(int(number)):
                self._client.key_value_delete(f"parts/{name}/{i}")
            yield content

    def draw(self, name: str, number: int) -> int:
        """Draw so many numbers from a counter that all processes share; returns the first."""
        return int(self._client.key_value_increment(name, number)) - number

    def others(self) -> list[int]:
        """The other processes."""
        return [p for p in range(self.processes) if p != self.process]

    def silent(self, process: int) -> bool:
        """Whether a process has given no sign of life for too long."""
        _, heard = self._heard.get(str(process), (b"", self._began))
        return time.monotonic() - heard > self._patience

    def require_alive(self, *processes: int) -> None:
        """Refuse to go on if one of these processes is lost."""
        lost = [p for p in processes if p != self.process and self.silent(p)]
        if lost:
            named = ", ".join(str(p) for p in lost)
            raise HostError(
                f"process {named} of {self.processes} has given no sign of life for "
                f"{self._patience:g} s: the run stops here. {_GOES_ON}"
            )

    def _try(self, name: str) -> bytes | None:
        try:
            return self._client.key_value_try_get_bytes(name)
        except jax.errors.JaxRuntimeError as error:
            if "NOT_FOUND" in str(error):
                return None
            raise HostError(f"process 0 cannot be reached: {str(error).splitlines()[0]}") from error

    def _live(self) -> None:
        """Give signs of life, and look for those of the others, until the board is closed."""
        count = 0
        while not self._ending.is_set():
            count += 1
            try:
                self._client.key_value_set_bytes(
                    f"alive/{self.process}", str(count).encode(), allow_overwrite=True
                )
                for name, sign in self._client.key_value_dir_get_bytes("alive/"):
                    process = name.rpartition("/")[2]
                    if self._heard.get(process, (b"", 0.0))[0] != sign:
                        self._heard[process] = (sign, time.monotonic())
            except jax.errors.JaxRuntimeError:
                # Whoever waits for the others will find that nobody was heard of.
                pass
            self._ending.wait(min(1.0, self._patience / 10))


@dataclasses.dataclass
class Share:
    """The tiles that this process takes for itself, a few at a time."""

    board: Board
    counter: str
    tiles: Sequence[int]
    devices: int
    _left: int = 0
    _began: float | None = None
    _taken: int = 0

    def next(self) -> Sequence[int]:
        """The next tiles to compute; none are left once it returns none."""
        now = time.monotonic()
        if self._began is None:
            number = self.devices  # nobody knows yet how long they take
            self._left = len(self.tiles)
        else:
            pace = max((now - self._began) / max(self._taken, 1), 1e-6)
            # Towards the end fewer, so that nobody waits long for the last one.
            fair = self._left // (2 * self.board.processes)
            number = max(self.devices, min(round(_SPAN / pace), fair))
        first = self.board.draw(self.counter, number)
        taken = self.tiles[first : first + number]
        self._began, self._taken = now, len(taken)
        self._left = max(len(self.tiles) - first - number, 0)
        return taken


class Leader:
    """Process 0 as a crew: it computes tiles, and so do all the others."""

    def __init__(self, board: Board) -> None:
        self.board = board
        self._mine = Alone()
        self._jobs = 0

    def introduce(self, subject: dict[str, Any]) -> None:
        """Tell the others what the next works are about; see `surestep.cli.workers`."""
        self._post(pack_job({"subject": subject}, {}))

    def _post(self, content: bytes) -> int:
        job, self._jobs = self._jobs, self._jobs + 1
        self.board.put(f"job/{job}", content)
        return job

    def observe(self, work: Work, tiles: Sequence[int]) -> Iterator[tuple[int, Observed]]:
        """Compute tiles, together with the others."""
        job = self._post(pack_work(work, tiles))
        share = Share(self.board, f"next/{job}", tiles, len(jax.local_devices()))
        left, mine = len(tiles), share.next()
        while left:
            for tile, seen in self._mine.observe(work, mine):
                left -= 1
                yield tile, seen
            mine = share.next() if mine else mine
            for content in self.board.take(f"done/{job}/"):
                left -= 1
                yield _expected(work, *unpack_seen(content))
            self._require_workers()
            if left and not mine:
                time.sleep(0.02)

    def dismiss(self, code: int = 0, message: str = "") -> bool:
        """Let the others go, and wait until they have heard it; a message says what went wrong.

        Returns whether all of them have.
        """
        self.board.put("end", json.dumps({"code": code, "message": message}).encode())
        until, waiting = time.monotonic() + _FAREWELL, self.board.others()
        while waiting and time.monotonic() < until:
            waiting = [p for p in waiting if self.board.get(f"bye/{p}") is None]
            if all(self.board.silent(p) for p in waiting):
                break
            time.sleep(0.05)
        return not waiting

    def _require_workers(self) -> None:
        for content in self.board.take("failed/"):
            raise HostError(f"{content.decode()}. {_GOES_ON}")
        self.board.require_alive(*self.board.others())


def _expected(work: Work, tile: int, seen: Observed) -> tuple[int, Observed]:
    """What another process has seen, if it can be a tile of this work."""
    if 0 <= tile < work.number:
        shape = work.place(tile).shape
        tables = vars(seen).values()
        if [table.shape for table in tables] == [(*shape, n) for n in work.watch.widths]:
            return tile, seen
    raise HostError(f"a process has handed in something that is no tile of this work. {_GOES_ON}")


def pack_work(work: Work, tiles: Sequence[int]) -> bytes:
    """A work as bytes, for processes that know the problem, its rules and the data already."""
    commitment = work.data.commitment if isinstance(work.data, TrainSet) else None
    facts = {
        "name": work.name,
        "commitment": to_plain(commitment),
        "at": work.watch.at,
        "length": work.length,
        "sha256": work.data.sha256,
        "number": work.number,
    }
    arrays = {"tiles": np.asarray(tiles, np.int64)}
    if work.hypers is not None:
        arrays["hypers"] = np.ascontiguousarray(work.hypers)
    if work.targets is not None:
        arrays["targets"] = np.ascontiguousarray(work.targets)
    return pack_job(facts, arrays)


def pack_job(facts: dict[str, Any], arrays: dict[str, np.ndarray]) -> bytes:
    """What process 0 has to say, as bytes."""
    return safetensors.numpy.save(arrays, {"facts": json.dumps(facts)})


def unpack_job(content: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The other way round."""
    length = int.from_bytes(content[:8], "little")
    facts = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["facts"])
    return facts, safetensors.numpy.load(content)


def unpack_end(content: bytes) -> tuple[int, str]:
    """The exit code of process 0, and what went wrong there."""
    end = json.loads(content)
    return end["code"], end["message"]


def pack_seen(tile: int, seen: Observed) -> bytes:
    """What was observed on a tile, as bytes."""
    arrays = {name: np.ascontiguousarray(part) for name, part in vars(seen).items()}
    return safetensors.numpy.save(arrays | {"tile": np.array([tile])})


def unpack_seen(content: bytes) -> tuple[int, Observed]:
    """The other way round."""
    arrays = safetensors.numpy.load(content)
    return int(arrays.pop("tile")[0]), Observed(**arrays)
