"""The program of the process that runs generated functions: reads jobs from its input, writes outcomes to its output.

It runs in isolated mode and knows nothing of Assay. Its resources are limited before the first function is made.
A job is a function's source and a list of arguments; an outcome is `[value, null]` per call, or `[null, error]`.
"""

import json
import resource
import signal
import sys
from typing import Any

CPU_SECONDS, MEMORY_BYTES, CPU_SECONDS_PER_FUNCTION = 60, 1 << 30, 1.0
"""CPU time and not the clock's, so that a busy machine changes no outcome."""


def limit() -> None:
    """Bound CPU time and memory, and forbid files and processes."""
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))


def run(source: str, calls: list[list[Any]]) -> list[list[Any]]:
    """Outcomes of the calls of the one function that `source` defines."""
    scope: dict[str, Any] = {}
    exec(source, scope)
    outcomes: list[list[Any]] = []
    for args in calls:
        try:
            outcomes.append([scope["f"](*args), None])
        except (ArithmeticError, LookupError, TypeError, ValueError, TimeoutError) as error:
            outcomes.append([None, type(error).__name__])
    return outcomes


def expired(*_: object) -> None:
    """End a function that takes too long."""
    raise TimeoutError


def main() -> None:
    """All jobs, one after the other."""
    limit()
    signal.signal(signal.SIGVTALRM, expired)
    results = []
    for job in json.load(sys.stdin):
        signal.setitimer(signal.ITIMER_VIRTUAL, CPU_SECONDS_PER_FUNCTION)
        results.append(run(job["source"], job["calls"]))
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
