"""One process that runs references, and the line of those who wait for it.

    lane = Conversation(python, device, walls)
    frame = lane.answer(request, seconds, most_bytes)

Requests are answered in the order in which they were made, so nobody waits for more than one answer to each other.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections import deque
from types import TracebackType

from assay.errors import MissingDependencyError, ReferenceModelError, pip_install
from assay.kernels.frames import Frame, read_frame
from assay.kernels.numerics.reference_launch import Walls, await_end, drain, launch, read, write
from assay.sandbox.host.bubblewrap import kill

START_TIMEOUT_S = 180.0
GRACE_S = 10.0
"""Past its deadline by this long, a process that should have ended its evaluation by itself is killed."""
_LEAVE_S = 5.0
_CLOSED = "the process that runs references was closed, and starts no more: make another ReferenceProcess."


class Line:
    """A lock that is given in the order in which it was asked for. `threading.Lock` may give it to who just had it."""

    def __init__(self) -> None:
        self._guard, self._held = threading.Lock(), False
        self._waiting: deque[threading.Event] = deque()

    def __enter__(self) -> None:
        with self._guard:
            if not self._held:
                self._held = True
                return
            mine = threading.Event()
            self._waiting.append(mine)
        try:
            mine.wait()
        except BaseException:  # an interrupt: whoever leaves the line must not be handed the lock
            with self._guard:
                if mine in self._waiting:
                    self._waiting.remove(mine)
                    raise
            self.__exit__(None, None, None)
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._guard:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._held = False


class Conversation:
    """One process, started when it is first needed and again where it was lost; usable from several threads."""

    def __init__(self, python: str, device: str, walls: Walls) -> None:
        """Nothing is started before the first request. For the arguments see `reference.ReferenceProcess`."""
        self._python, self._device, self._walls = python, device, walls
        self._ended = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._line = Line()
        self._closed = False

    @property
    def pid(self) -> int | None:
        """Of the process; None where none runs."""
        return self._process.pid if self._process is not None else None

    def answer(self, request: bytes, seconds: float, most_bytes: int) -> tuple[Frame, float]:
        """The answer to a request, and the seconds that it took once it was its turn.

        Args:
            request: For `assay.kernels.inside.reference_worker`.
            seconds: Limit of the evaluation, which the process keeps by itself.
            most_bytes: Of the answer.

        Raises:
            ReferenceModelError: `timeout`, or `crash`: the process died, or was closed.
            MissingDependencyError: the interpreter has no PyTorch.
            SandboxError: this machine cannot wall problems in.
        """
        with self._line:
            begin = time.monotonic()
            frame = self._exchange(request, seconds, most_bytes)
            return frame, time.monotonic() - begin

    def close(self) -> None:
        """End the process for good: requests under way, in line and later fail at once with `crash`."""
        self._closed = True  # before the process is looked for, so that none is started unseen: see `_start`
        process = self._process
        if process is not None:
            kill(process)
        with self._line:
            self._kill()

    def _exchange(self, request: bytes, seconds: float, most_bytes: int) -> Frame:
        if self._closed:
            raise ReferenceModelError("crash", _CLOSED)
        try:
            process = self._process or self._start()
            deadline = time.monotonic() + seconds + GRACE_S
            write(process, len(request).to_bytes(8, "little") + request, deadline)
            size = int.from_bytes(read(process, 8, deadline), "little")
            if size > most_bytes:
                raise ValueError(f"an answer of {size} bytes was announced")
            return read_frame(read(process, size, deadline))
        except TimeoutError as error:
            self._kill()
            raise ReferenceModelError("timeout", f"the reference took more than {seconds:g} s.") from error
        except (EOFError, BrokenPipeError, ValueError) as error:  # ValueError: what came is not a frame
            self._kill()
            said = _CLOSED if self._closed else "the process that runs references died. Try again."
            raise ReferenceModelError("crash", said) from error
        except BaseException:
            self._kill()  # half an answer may be on its way, which the next request would take for its own
            raise

    def _start(self) -> subprocess.Popen[bytes]:
        ended = threading.Event()
        try:
            process = launch(self._python, self._device, self._walls, ended)
        except OSError as error:
            raise ReferenceModelError("crash", f"the process that runs references did not start: {error}") from error
        self._ended = ended
        self._process = process
        if self._closed:  # meanwhile, by a thread that saw no process to end
            kill(process)
        errors: list[bytes] = []
        drainer = threading.Thread(target=drain, args=(process, errors), daemon=True)
        drainer.start()
        try:
            read(process, len(b"ready\n"), time.monotonic() + START_TIMEOUT_S)
        except (TimeoutError, EOFError) as error:
            self._kill()
            drainer.join(GRACE_S)
            text = b"".join(errors).decode(errors="replace").strip().rpartition("\n")[2]
            if "No module named 'torch'" in text:
                raise MissingDependencyError(
                    f"references run on PyTorch, which {self._python} does not have: {pip_install('torch')}."
                ) from error
            raise ReferenceModelError("crash", f"the process that runs references did not start: {text}") from error
        return process

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        # Left alone, it ends all that a reference started, also what has left its process group.
        await_end(process, _LEAVE_S)
        kill(process)
        process.wait()
        self._ended.set()
