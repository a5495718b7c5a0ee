"""`assay serve` as a process of its own, and what it costs."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

STOP_S = 60


@dataclass(frozen=True)
class Served:
    """A server that is running."""

    url: str
    pid: int
    state: Path
    """The folder of its checkpoints."""

    def cpu_s(self) -> float:
        """CPU seconds that it has used, over all threads."""
        fields = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident_mb(self) -> float:
        """Memory that it holds, in MiB."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGESIZE") / 2**20

    def weights(self, path: str) -> Path:
        """The file with the adapter of a checkpoint, `tinker://run/kind/name`."""
        return self.state / "runs" / path.removeprefix("tinker://") / "adapter_model.safetensors"


@contextlib.contextmanager
def served(model: Path, name: str, state: Path, *settings: str) -> Iterator[Served]:
    """Serve a model at a free port of this machine until the end of the block; its log is `state` with `.log`."""
    command = [sys.executable, "-m", "assay", "serve", "--model", str(model), f"name={name}", "port=0"]
    given = [f"state_path={state}", "local.device=cpu", *settings]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with (
        state.with_suffix(".log").open("a") as log,
        subprocess.Popen([*command, *given], stdout=subprocess.PIPE, stderr=log, text=True, env=environment) as server,
    ):
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            urls = [word for word in line.split() if word.startswith("http://")]
            if not urls:
                sys.exit(f"assay serve did not start; see {state.with_suffix('.log')}")
            yield Served(urls[0], server.pid, state)
            server.send_signal(signal.SIGTERM)
            server.wait(STOP_S)
        finally:
            server.kill()
