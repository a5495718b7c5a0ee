"""A Python program in a fork of this process: with the libraries that take seconds to import, and with no Assay yet."""

from __future__ import annotations

import gc
import logging
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

from support import frozen

ROOT = Path(__file__).parents[2]
OURS = ("assay", "benchmarks", "support")
"""Packages that the program imports anew, from where its own path has them."""
CHECKOUT = {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])}
"""The environment variable with which a program has this checkout's."""


def run_warm(
    arguments: Sequence[str],
    place: Path,
    environment: Mapping[str, str],
    given: str = "",
    timeout_s: int = 100,
    anew: Sequence[str] = (),
) -> subprocess.CompletedProcess[str]:
    """What `python -P` does with the arguments `-m MODULE ...`, `-c CODE ...` or `FILE ...`, in the directory `place`.

    Nothing of this checkout is on its path unless PYTHONPATH of the environment has it. For programs of which nothing
    is asked that only a new process has: what is loaded at the start, how it begins and how it is interrupted.

    Args:
        given: what it reads from standard input.
        anew: packages that it imports anew, besides Assay; what is compiled of them (`_C`) stays as it is.
    """
    with tempfile.TemporaryFile("w+") as into, tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        into.write(given)
        into.seek(0)
        child = os.fork()
        if child == 0:
            signal.alarm(timeout_s)
            pipes = into.fileno(), out.fileno(), err.fileno()
            os._exit(_program(list(arguments), place, environment, pipes, (*OURS, *anew)))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(list(arguments), status, out.read(), err.read())


def _program(
    arguments: list[str], place: Path, environment: Mapping[str, str], pipes: tuple[int, int, int], anew: Sequence[str]
) -> int:
    """Run it and return its exit status."""
    _begin(place, environment, pipes, anew)
    code: object = 0
    try:
        if arguments[0] == "-m":
            sys.argv = arguments[1:]
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        elif arguments[0] == "-c":
            sys.argv = ["-c", *arguments[2:]]
            exec(arguments[1], {"__name__": "__main__"})
        else:
            sys.argv = arguments
            runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as left:
        code = left.code
    except BaseException:  # noqa: BLE001  as Python ends a program that raises
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code if isinstance(code, int) else int(code is not None)


def _begin(place: Path, environment: Mapping[str, str], pipes: tuple[int, int, int], anew: Sequence[str]) -> None:
    """Leave of this process what a new one has, and what is installed."""
    for number, pipe in enumerate(pipes):
        os.dup2(pipe, number)
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(n, "w" if n else "r", closefd=False) for n in range(3))
    os.chdir(place)
    os.environ.clear()
    os.environ.update(environment)
    here = {str(ROOT), str(ROOT / "src"), str(ROOT / "tests")}
    below = str(ROOT / "tests") + os.sep
    installed = [path for path in sys.path if path not in here and not path.startswith(below)]
    sys.path[:] = [*filter(None, environment.get("PYTHONPATH", "").split(os.pathsep)), *installed]
    for name in list(sys.modules):
        package, _, rest = name.partition(".")
        if (package in anew and rest.partition(".")[0] != "_C") or name.startswith("assay_file_"):
            del sys.modules[name]
    sys.path_importer_cache.clear()
    logging.getLogger().handlers.clear()
    for name in [name for name in logging.root.manager.loggerDict if name.partition(".")[0] in OURS]:
        del logging.root.manager.loggerDict[name]
    logging.getLogger().setLevel(logging.WARNING)
    warnings.resetwarnings()
    gc.get_freeze_count = frozen.count
    gc.unfreeze()
