"""Where candidates run: the sandbox of this machine, on its processor or its GPU, or containers at Modal."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from importlib import resources
from importlib.util import find_spec

from assay.errors import MissingDependencyError, pip_install
from assay.kernels.compile.toolkit import find_toolkit, triton_executables
from assay.kernels.config import GraderConfig
from assay.kernels.devices import nvidia_devices
from assay.sandbox.base import Sandbox
from assay.sandbox.local import LocalConfig, LocalSandbox
from assay.sandbox.modal.sandbox import ModalSandbox

HIDDEN = (str(resources.files("assay.kernels.problems") / "shipped"),)
"""Folders that candidates must not read although they are beside the harness."""
WORKER_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""A second thread in a worker would hang its forks."""
PCI = ("/sys/devices", "/sys/bus/pci")
"""Where CUDA looks for the place of its GPUs."""


def require_packages(config: GraderConfig) -> None:
    """Make sure that the packages are there with which references and candidates run. Imports none of them.

    Raises:
        MissingDependencyError: one is not installed; the message names the extras that install them.
    """
    if config.backend == "cuda" and config.device == "cpu":
        return  # sources are compiled, and nothing runs
    wanted = ["torch", *(["triton"] if config.backend == "triton" and config.run_on == "local" else [])]
    missing = [package for package in wanted if find_spec(package) is None]
    if missing:
        raise MissingDependencyError(
            f"grading runs {' and '.join(wanted)} here, and {' and '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} not installed: {pip_install('torch', 'kernelbench')}."
        )


def sandbox_for(config: GraderConfig) -> Sandbox:
    """The sandbox in which candidates are graded.

    Raises:
        SandboxError: the machine cannot isolate untrusted code.
        MissingDependencyError: a package, or what running on a GPU or at Modal needs, is not installed.
    """
    require_packages(config)
    return ModalSandbox(config.modal) if config.run_on == "modal" else local_sandbox(config)


def local_sandbox(config: GraderConfig) -> LocalSandbox:
    """The sandbox on this machine in which candidates are graded.

    Raises:
        SandboxError: the machine cannot isolate untrusted code.
        MissingDependencyError: kernels are to be built for a GPU, and nothing here could.
    """
    devices = nvidia_devices() if config.device == "cuda" else ()
    return LocalSandbox(
        LocalConfig(
            sandbox=config.sandbox,
            workers=config.workers or (max(2, len(os.sched_getaffinity(0))) if config.measure_performance else 0),
            environment=worker_environment(config),
            hidden=HIDDEN,
            devices=devices,
            readable=(*_toolkit_files(config), *(PCI if devices else ())),
            executables=_executables(config),
        )
    )


def _toolkit_files(config: GraderConfig) -> tuple[str, ...]:
    """A CUDA toolkit outside /usr, which jobs would not see otherwise."""
    if config.backend != "cuda":
        return ()
    try:
        return find_toolkit().readable
    except MissingDependencyError:
        if config.device == "cuda":
            raise
        return ()  # the compile stage says so, candidate by candidate, in the same words


def _executables(config: GraderConfig) -> tuple[str, ...]:
    """What compile jobs may execute. Everything in view where kernels are built for a device or models compiled for a
    baseline: that takes compilers, linkers and ninja from wherever this machine has them."""
    if config.device == "cuda" or config.measure_performance:
        return ()
    if config.backend == "cuda":
        with contextlib.suppress(MissingDependencyError):  # the compile stage says what is missing
            return find_toolkit().executables
    return triton_executables()


def worker_environment(config: GraderConfig) -> dict[str, str]:
    """Variables of the workers.

    Raises:
        MissingDependencyError: extensions are to be built, and a CUDA compiler or ninja is missing.
    """
    found = dict(WORKER_ENVIRONMENT)
    if config.measure_performance and config.timing.device == "cpu":
        found["TRITON_INTERPRET"] = "1"  # read when Triton is imported; it has nothing else to run on
    if config.backend == "cuda" and config.device == "cuda":
        toolkit = find_toolkit()
        ninja = shutil.which("ninja", path=os.pathsep.join((os.path.dirname(sys.executable), os.environ["PATH"])))
        if ninja is None:
            raise MissingDependencyError(
                "load_inline builds extensions with ninja, which is not installed: pip install ninja, or "
                "apt-get install ninja-build."
            )
        folders = (os.path.dirname(ninja), os.path.dirname(toolkit.host), "/usr/local/bin", "/usr/bin", "/bin")
        found |= {"CUDA_HOME": toolkit.root, "PATH": os.pathsep.join(dict.fromkeys(folders))}
    return found
