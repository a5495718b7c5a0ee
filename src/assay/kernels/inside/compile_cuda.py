"""Harness of the compile stage for CUDA: writes texts to files, runs compilers on them, hands back their words.

The candidate's Python does not run here, and nothing that is compiled is executed or loaded. The parent decides what
the words of a compiler mean (`assay.kernels.compile.messages`).
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from assay.kernels.inside.light_torch.forwarding import HEADERS, write_forwarding_headers
from assay.types import Json

if TYPE_CHECKING:
    from assay.sandbox.base import ReadInputs, WriteOutputs

SAID_BYTES = 24_000
"""How much is kept of what one step says: the beginning, with the first error."""
NOT_FOUND = 127


def preload() -> None:
    """Nothing to warm: compilers are processes of their own."""


def execute(source: str, header: Json, read_inputs: ReadInputs, write_outputs: WriteOutputs) -> Json:
    """Run each step of the header, a file and a command, until one fails; reports status and words of each."""
    while read_inputs() is not None:
        pass
    folder = tempfile.gettempdir()
    forwarding = os.path.join(folder, "headers")
    write_forwarding_headers(forwarding)
    steps: list[Json] = []
    for step in header["steps"]:
        path = os.path.join(folder, step["file"])
        Path(path).write_text(step["text"], encoding="utf-8")
        names = {"{file}": path, "{headers}": HEADERS, "{forwarding}": forwarding, "{folder}": folder}
        command = [_filled(word, names) for word in step["command"]]
        status, said = _run(command, folder)
        steps.append({"status": status, "said": said.replace(folder + os.sep, "")})
        if status != 0:
            break
    return {"steps": steps}


def _filled(word: str, names: dict[str, str]) -> str:
    for name, value in names.items():
        word = word.replace(name, value)
    return word


def _run(command: list[str], folder: str) -> tuple[int, str]:
    """Exit status and the beginning of what a command wrote."""
    with tempfile.TemporaryFile(dir=folder) as output:
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env={**os.environ, "LC_ALL": "C"},  # plain quotation marks, whose words the parent looks for
                check=False,
            )
        except OSError as error:
            return NOT_FOUND, f"{command[0]}: {error.strerror}"
        output.seek(0)
        return done.returncode, output.read(SAID_BYTES).decode("utf-8", "replace")
