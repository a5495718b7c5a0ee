"""How much memory a job's processes hold together, for machines without a control group to bound it.

`RLIMIT_AS` bounds each process alone. The worker looks at all of them many times a second, and kills the job when they
hold too much, or are more than any compiler needs. Between two looks a job can exceed its limit by what it can write in
that time.
"""

from __future__ import annotations

import os

EVERY_S = 0.02
MOST_PROCESSES = 24
"""A compiler driver, a shell, a front end, an assembler and a linker for a few files at a time; not one for each thread
that a job could have."""
_PAGE = os.sysconf("SC_PAGE_SIZE")


def too_much(first: int, most_bytes: int) -> bool:
    """Whether a process and all below it hold more than so many bytes, or are too many."""
    pids = processes(first)
    if len(pids) > MOST_PROCESSES:
        return True
    shared = _private(
        os.getpid()
    )  # a fork begins with the worker's own memory, which takes no room until it is changed
    return sum(_held(pid, shared) for pid in pids) > most_bytes


def processes(first: int) -> list[int]:
    """A process and all below it; what its parents left behind is below the first of their namespace."""
    found = [first]
    for pid in found:
        try:
            threads = os.listdir(f"/proc/{pid}/task")
        except OSError:  # it has ended meanwhile
            continue
        for thread in threads:
            found += [int(child) for child in _text(f"/proc/{pid}/task/{thread}/children").split()]
        if len(found) > 4 * MOST_PROCESSES:
            break
    return found


def _held(pid: int, shared: int) -> int:
    """Memory that a process holds by itself. What executed a program can be measured; a fork of the worker, which lets
    nobody look into it, is taken to share all that the worker has."""
    for line in _text(f"/proc/{pid}/smaps_rollup").splitlines():
        if line.startswith("Pss_Anon:"):
            return int(line.split()[1]) * 1024
    return max(0, _private(pid) - shared)


def _private(pid: int) -> int:
    fields = _text(f"/proc/{pid}/statm").split()
    return (int(fields[1]) - int(fields[2])) * _PAGE if len(fields) > 2 else 0


def _text(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
