"""Assay as its wheel installs it, and its command line in another directory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from support.warm_process import run_warm

ROOT = Path(__file__).parents[2]


def install(folder: Path) -> Path:
    """Build the wheel and unpack it into `folder`; what it depends on comes from this interpreter's environment."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    alone = ["--no-deps", "--no-index", "--no-build-isolation", "--no-compile"]
    subprocess.run([*pip, *alone, "--target", str(folder), str(ROOT)], check=True, timeout=100)
    return folder


class InstalledAssay:
    """`assay` of the wheel in `folder`, run in the directory `place`."""

    def __init__(self, folder: Path, place: Path) -> None:
        self.place = place
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("ASSAY_", "HF_"))}
        self.environment = {**kept, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a command; -P keeps the checkout, and whatever else lies around, out of the import path."""
        command = [sys.executable, "-P", "-m", "assay", *arguments]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(command, cwd=self.place, env=self.environment, text=True, **pipes)  # type: ignore[call-overload, no-any-return]

    def __call__(self, *arguments: str, status: int = 0, warm: bool = False) -> tuple[str, str]:
        """What a command prints on stdout and stderr, and it exits with `status`.

        Args:
            warm: in a process that has PyTorch and transformers already; Assay is the wheel's there too.
        """
        if warm:
            done = run_warm(["-m", "assay", *arguments], self.place, self.environment)
            returned, out, err = done.returncode, done.stdout, done.stderr
        else:
            process = self.start(*arguments)
            out, err = process.communicate(timeout=100)
            returned = process.returncode
        assert returned == status, f"{out}\n{err}"
        assert "Traceback" not in err, err
        return out, err

    def kill(self, *arguments: str, run: Path, steps: int) -> str:
        """Start a training, kill it once it has committed `steps` steps, and return what it wrote to stderr."""
        process = self.start(*arguments)
        ledger = run / "ledger.jsonl"
        while process.poll() is None and not (ledger.exists() and ledger.read_text().count("\n") >= steps):
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        _, err = process.communicate()
        assert process.returncode == -signal.SIGKILL, err
        return err
