"""Where the CUDA compiler of this machine is: nvcc in PATH, CUDA_HOME, /usr/local/cuda, or packages of PyPI.

What stands under the name nvcc may be a script or a link, so it is asked where its toolkit lies. Nothing is downloaded.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from assay.errors import MissingDependencyError, pip_install
from assay.types import Check

ASK_S = 60.0
CURE = (
    "install a CUDA toolkit (12 or newer) and put its bin folder into PATH, or name its folder in CUDA_HOME; the PyPI "
    "packages nvidia-cuda-nvcc, nvidia-cuda-runtime, nvidia-cuda-crt, nvidia-nvvm and nvidia-cuda-cccl (13 or newer) "
    "are one. A host compiler (g++) is needed too: apt-get install g++, or the like of your system"
)
_TOP = re.compile(r"^#\$ TOP=(.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class CudaToolkit:
    """A compiler for CUDA and the host compiler that it calls."""

    nvcc: str
    """The real program, not the script that may stand for it."""
    root: str
    """The folder with its headers and tools."""
    host: str
    """g++."""

    @property
    def include(self) -> str:
        """The folder of the CUDA runtime's headers."""
        return os.path.join(self.root, "include")

    @property
    def readable(self) -> tuple[str, ...]:
        """What a sandbox must let jobs read; for `LocalConfig.readable`."""
        return (self.root,)

    @property
    def executables(self) -> tuple[str, ...]:
        """What a sandbox must let jobs execute; for `LocalConfig.executables`."""
        helpers = {os.path.dirname(tool) for name in ("cc1plus", "as") if (tool := _host_tool(self.host, name))}
        hosts = {os.path.realpath(path) for name in ("gcc", "g++") if (path := shutil.which(name))}
        return (*sorted({self.root, os.path.realpath(self.host), *hosts, *helpers}), *shell_and_loader())


def shell_and_loader() -> tuple[str, ...]:
    """What any program or script needs in order to start."""
    loader = {"x86_64": "/lib64/ld-linux-x86-64.so.2", "aarch64": "/lib/ld-linux-aarch64.so.1"}
    wanted = ("/bin/sh", loader.get(platform.machine(), ""))
    return tuple(os.path.realpath(path) for path in wanted if path and os.path.exists(path))


def triton_executables() -> tuple[str, ...]:
    """What compiling Triton executes: the assembler that it ships. Empty where Triton is not installed."""
    found = importlib.util.find_spec("triton")
    if found is None or found.origin is None:
        return ()
    tools = Path(found.origin).parent / "backends" / "nvidia" / "bin"
    return (str(tools), *shell_and_loader()) if tools.is_dir() else ()


@functools.cache
def find_toolkit(search_path: str | None = None) -> CudaToolkit:
    """The toolkit of this machine.

    Args:
        search_path: Replaces PATH; nothing else is then looked at.

    Raises:
        MissingDependencyError: there is none that works.
    """
    tried = []
    for nvcc in _candidates(search_path):
        root, said = _root_of(nvcc)
        if not root:
            tried.append(f"{nvcc}: {said}")
            continue
        host = shutil.which("g++", path=search_path)
        if host is None:
            tried.append(f"{nvcc} has no host compiler: no g++ in PATH")
            continue
        return CudaToolkit(os.path.join(root, "bin", "nvcc"), root, host)
    seen = "; ".join(tried) or "no nvcc in PATH, CUDA_HOME, /usr/local/cuda or the installed packages"
    raise MissingDependencyError(f"CUDA sources cannot be compiled here ({seen}), so they are not checked: {CURE}.")


def checks() -> list[Check]:
    """The compilers of kernels: for CUDA sources, and for Triton."""
    try:
        toolkit = find_toolkit()
        cuda = Check("compiler: CUDA", True, f"{toolkit.nvcc} with {toolkit.host}")
    except MissingDependencyError:
        cuda = Check("compiler: CUDA", False, "no nvcc with a host compiler; Triton kernels do not need them", CURE)
    found = triton_executables()
    lack = f"{pip_install('kernelbench')} (Linux)"
    seen = found[0] if found else "Triton is not installed"
    return [cuda, Check("compiler: Triton", bool(found), seen, lack)]


def _candidates(search_path: str | None) -> list[str]:
    """Programs that may be nvcc, best first."""
    found = [shutil.which("nvcc", path=search_path) or ""]
    if search_path is None:
        homes = [os.environ.get("CUDA_HOME", ""), "/usr/local/cuda"]
        homes += [str(home) for path in sys.path for home in sorted(Path(path).glob("nvidia/*")) if path]
        found += [os.path.join(home, "bin", "nvcc") for home in homes if home]
    return [path for path in dict.fromkeys(found) if path and os.access(path, os.X_OK)]


def _root_of(nvcc: str) -> tuple[str, str]:
    """The toolkit's folder as the program itself names it, or none and what it said."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "nothing.cu"
        source.touch()
        try:
            done = subprocess.run(
                [nvcc, "--dryrun", "-cubin", str(source)], capture_output=True, text=True, timeout=ASK_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return "", str(error)
    top = _TOP.search(done.stderr + done.stdout)
    root = os.path.realpath(top[1].strip()) if top else ""
    if root and os.path.exists(os.path.join(root, "bin", "nvcc")):
        return root, ""
    return "", (done.stderr.strip()[:200] or "its output does not name its toolkit")


def _host_tool(host: str, name: str) -> str:
    """Full path of a program that the host compiler runs, empty where it names none."""
    try:
        done = subprocess.run(
            [host, f"-print-prog-name={name}"], capture_output=True, text=True, timeout=ASK_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    path = done.stdout.strip()
    return os.path.realpath(path) if os.path.isabs(path) else ""
