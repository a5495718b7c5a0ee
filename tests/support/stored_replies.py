"""Keys and replies to put into a reply cache, each derived from a number, and programs that do so elsewhere."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from assay.rewards.cache import StoredReply


def key(number: int) -> str:
    return hashlib.sha256(str(number).encode()).hexdigest()


def reply(number: int, chars: int = 400) -> StoredReply:
    return StoredReply((f"verdict {number} " * chars)[:chars], "stop", "judge-1", number, 7)


def rows(numbers: range, chars: int = 400) -> list[tuple[str, StoredReply]]:
    return [(key(n), reply(n, chars)) for n in numbers]


PRELUDE = """
import os, resource, signal, sys, time
from pathlib import Path
from assay.rewards.cache import ReplyCache
from support.stored_replies import key, reply, rows
path = Path(sys.argv[1])
"""


def program(code: str, *arguments: object, prefix: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    """A process that runs `code` after `PRELUDE`."""
    folders = [str(Path(__file__).parents[1]), *sys.path]
    return subprocess.Popen(
        [*prefix, sys.executable, "-c", PRELUDE + code, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders))},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def output(process: subprocess.Popen[str]) -> str:
    """What a program printed, once it has ended well."""
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return out
