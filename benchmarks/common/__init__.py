"""What several benchmarks share: the machine in words, and medians with their spread. Imports nothing heavy.

A folder, so that `make bench`, which runs every `benchmarks/*.py`, passes it by.
"""

from __future__ import annotations

import os
import platform
import resource
import statistics
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))
"""Where `support`, the helpers of the tests, is: some serve benchmarks too."""
Summary = dict[str, float]


def machine(*packages: str) -> dict[str, object]:
    """Processor, cores, versions of Python and `packages`; beside torch, its threads and its version too."""
    torch = sys.modules.get("torch")
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        **({"torch_threads": torch.get_num_threads()} if torch else {}),
        **{name: version(name) for name in (*(("torch", "transformers") if torch else ()), *packages)},
    }


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def summary(values: Sequence[float]) -> Summary:
    """Median, lowest and highest."""
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def peak_rss_mb() -> float:
    """The most memory that this process has held, in MiB.

    Linux hands `ru_maxrss` of a parent on to the program that its child executes, so the kernel's own account of this
    address space comes first.
    """
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    peak = next((int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), None)
    return (peak or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) / 1024
