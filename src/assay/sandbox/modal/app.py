"""The app that runs jobs on Modal. Deploy it once per version of Assay, with the credentials of your workspace:

    modal deploy -m assay.sandbox.modal.app

Only the `modal` command and Modal's containers import this module; `ModalSandbox` finds what was deployed by its name.
A container starts warm for one harness before the clock of any job runs, takes one candidate, answers and is thrown
away. It has no network and no access to the workspace.
"""

# Modal reads the annotations of parameters as they stand, so they cannot be postponed here.
from pathlib import Path

from assay.errors import MissingDependencyError, pip_install
from assay.sandbox.modal.container import Contained

try:
    import modal
except ImportError as error:
    raise MissingDependencyError(
        f"The app for Modal needs the package modal, which is not installed. Run {pip_install('modal')}."
    ) from error

APP_NAME = "assay-kernels"
"""The default of `ModalConfig.modal_app_name`; `modal deploy --name` takes another."""
START_S = 900
"""Seconds that a container may take to start: to pull its image, to import torch, to start CUDA."""
BASE_IMAGE = "nvidia/cuda:13.0.1-devel-ubuntu24.04"
"""Compilers and headers; torch and Triton bring their own CUDA libraries."""
PINS = ("chz==0.4.0", "numpy==2.4.6", "PyYAML==6.0.3", "rich==15.0.0", "torch==2.13.0", "triton==3.7.1")
"""What candidates are graded with; the pins of constraints.txt."""
PYTHON = "3.12"
SOURCE = f"/usr/local/lib/python{PYTHON}/site-packages/assay"
"""Not under /root, which workers that run as `nobody` cannot read."""

image = (
    modal.Image.from_registry(BASE_IMAGE, add_python=PYTHON)
    .entrypoint([])
    .apt_install("bubblewrap", "gcc", "g++", "ninja-build")
    .pip_install(*PINS)
    .env({"OMP_NUM_THREADS": "1"})
    .add_local_dir(Path(__file__).parents[2], SOURCE, ignore=["**/__pycache__", "**/*.pyc"])
)

app = modal.App(APP_NAME)


@app.cls(
    image=image,
    gpu="A100",
    timeout=180,
    startup_timeout=START_S,
    retries=0,
    single_use_containers=True,
    block_network=True,
    restrict_modal_access=True,
    include_source=False,
)
class KernelContainer:
    """One container process: one harness, one candidate. GPU and time limit are overridden by each `ModalSandbox`."""

    harness: str = modal.parameter()
    walls: str = modal.parameter(default="auto")

    @modal.enter()
    def start(self) -> None:
        """Warm the worker, outside the time of any job."""
        self._contained = Contained(self.harness, self.walls)
        self._contained.start()

    @modal.method()
    def run(self, payload: bytes) -> bytes:
        """Answer a job that `assay.sandbox.modal.payload` encoded."""
        return self._contained.answer(payload)

    @modal.exit()
    def stop(self) -> None:
        """End the worker."""
        self._contained.close()
