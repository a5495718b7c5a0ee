"""Programs of the tests' support, each run in a process of its own: each changes Triton for good."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from support.kernelbench_data import ROOT

SUPPORT = Path(__file__).parent


def program(name: str, *words: str, given: str = "") -> Any:
    """What a program prints last, as JSON."""
    paths = os.pathsep.join([str(ROOT), str(SUPPORT.parent)])
    command = [sys.executable, str(SUPPORT / f"{name}.py"), *words]
    done = subprocess.run(
        command, input=given, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": paths}, timeout=110
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])
