"""Settings of the containers at Modal, and what both sides of the seam to Modal say of an input without an answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import chz

from assay.config import Above, AtLeast, Settings, refuse


@chz.chz
class ModalSettings(Settings):
    """Where on Modal jobs run, and how many at a time."""

    modal_app_name: str = "assay-kernels"
    """Name under which the app was deployed."""
    modal_environment: str = ""
    """Modal environment of the app; empty for the default one of the profile."""
    modal_max_containers: Annotated[int, AtLeast(1)] = 32
    """Containers, and jobs in flight, at a time; further jobs wait here."""
    modal_buffer_containers: Annotated[int, AtLeast(0)] = 0
    """Warm containers kept ready beyond those in use; each saves a job its cold start, and costs GPU time."""
    modal_walls: Literal["auto", "strict"] = "auto"
    """`strict` wants the sandbox's own walls inside the container, or no job; `auto` takes them where they hold."""
    modal_batch_window: Annotated[float, AtLeast(0)] = 0.15
    """Seconds that a job waits for others to leave with."""
    modal_batch_size: Annotated[int, AtLeast(1)] = 32
    """Most jobs that leave together; a full batch waits no longer."""
    modal_retries: Annotated[int, AtLeast(0)] = 2
    """How often a job is tried again that was lost through no fault of its own."""
    modal_queue_timeout: Annotated[float, Above(0)] = 3600.0
    """Seconds that a batch may take in all, waiting for GPUs included; what is then unanswered counts as lost."""

    @chz.validate
    def _app_named(self) -> None:
        refuse(["modal_app_name cannot be empty."] if not self.modal_app_name else [])


@chz.chz
class ModalConfig(ModalSettings):
    """Where on Modal jobs run, on which GPU, for how long, and how many at a time."""

    modal_gpu_type: str = "A100"
    """GPU of a container, as Modal names it (T4, L4, A10, L40S, A100, A100-80GB, H100, H200, B200)."""
    modal_timeout: Annotated[float, Above(0)] = 120.0
    """Seconds that one kernel may take, once its container is up and warm; a job's own limit holds where shorter."""

    @chz.validate
    def _gpu_named(self) -> None:
        refuse(["modal_gpu_type cannot be empty."] if not self.modal_gpu_type else [])


@dataclass(frozen=True, slots=True)
class Lost:
    """An input without an answer."""

    kind: Literal["timeout", "infra", "refused"]
    """Its time ran out; it was lost, which says nothing about it; or no job at all can be run."""
    text: str


class BatchLost(Exception):
    """A whole batch failed, for the same reason."""

    def __init__(self, lost: Lost) -> None:
        super().__init__(lost.text)
        self.lost = lost
