"""Programs of the tests' support, each run in a fork of its own: each changes Triton for good."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from support.kernelbench_data import ROOT
from support.warm_process import run_warm

SUPPORT = Path(__file__).parent
HERE = os.pathsep.join(map(str, (ROOT, ROOT / "src", SUPPORT.parent)))


def program(name: str, *words: str, given: str = "") -> Any:
    """What a program prints last, as JSON."""
    return json.loads(printed([str(SUPPORT / f"{name}.py"), *words], given).splitlines()[-1])


def printed(arguments: list[str], given: str = "") -> str:
    """What a program prints that imports Triton anew: it reads its settings then. For the arguments see `run_warm`."""
    environment = {**os.environ, "PYTHONPATH": HERE}
    done = run_warm(arguments, Path.cwd(), environment, given, timeout_s=110, anew=("triton",))
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
