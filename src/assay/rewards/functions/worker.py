"""What runs in a worker process of a reward function: `python -m assay.rewards.functions.worker DESCRIPTOR`.

Reads who its parent is, the import path and the function's reference, answers "" or what is wrong; from then on reads
arguments and answers ("value", what it returned) or ("raised", the error in words), until its pipe ends.
"""

from __future__ import annotations

import asyncio
import ctypes
import inspect
import os
import pickle
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from assay.errors import AssayError
from assay.plugins import find, in_words
from assay.rewards.functions.processes import FUNCTION

_PR_SET_PDEATHSIG = 1


def main(descriptor: int) -> None:
    """Serve one parent until it is gone."""
    pipe = Connection(descriptor)
    with suppress(EOFError, OSError):
        parent, sys.path[:], reference = pipe.recv()
        _die_with(parent)
        try:
            function = find(reference, FUNCTION, "reward")
        except (AssayError, ImportError) as error:
            pipe.send(str(error) or type(error).__name__)
            return
        pipe.send("")
        while True:
            pipe.send_bytes(_answer(function, pickle.loads(pipe.recv_bytes())))


def _answer(function: Callable[..., Any], arguments: dict[str, Any]) -> bytes:
    try:
        returned = function(**arguments)
        if inspect.isawaitable(returned):
            returned = asyncio.run(_awaited(returned))
        return pickle.dumps(("value", returned))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a function raises is its answer
        return pickle.dumps(("raised", in_words(error)))


async def _awaited(returned: Any) -> Any:
    return await returned


def _die_with(parent: int) -> None:
    """Have Linux kill this process with its parent, also while the function hangs; elsewhere it ends when it reads."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            sys.exit()


if __name__ == "__main__":
    main(int(sys.argv[1]))
