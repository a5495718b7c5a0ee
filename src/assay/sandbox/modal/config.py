"""Settings of the containers at Modal, and what both sides of the seam to Modal say of an input without an answer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import chz

from assay.errors import ConfigError


@chz.chz
class ModalConfig:
    """Where on Modal jobs run, on which GPU, for how long, and how many at a time."""

    modal_gpu_type: str = "A100"
    """GPU of a container, as Modal names it (T4, L4, A10, L40S, A100, A100-80GB, H100, H200, B200)."""
    modal_timeout: float = 120.0
    """Seconds that one kernel may take, once its container is up and warm; a job's own limit holds where shorter."""
    modal_app_name: str = "assay-kernels"
    """Name under which the app was deployed."""
    modal_environment: str = ""
    """Modal environment of the app; empty for the default one of the profile."""
    modal_max_containers: int = 32
    """Containers, and jobs in flight, at a time; further jobs wait here."""
    modal_buffer_containers: int = 0
    """Warm containers kept ready beyond those in use; each saves a job its cold start, and costs GPU time."""
    modal_walls: Literal["auto", "strict"] = "auto"
    """`strict` wants the sandbox's own walls inside the container, or no job; `auto` takes them where they hold."""
    modal_batch_window: float = 0.15
    """Seconds that a job waits for others to leave with."""
    modal_batch_size: int = 32
    """Most jobs that leave together; a full batch waits no longer."""
    modal_retries: int = 2
    """How often a job is tried again that was lost through no fault of its own."""
    modal_queue_timeout: float = 3600.0
    """Seconds that a batch may take in all, waiting for GPUs included; what is then unanswered counts as lost."""

    @chz.validate
    def _sound(self) -> None:
        for name, least in (("modal_max_containers", 1), ("modal_batch_size", 1), ("modal_retries", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name}={getattr(self, name)}: give {least} or more.")
        for name in ("modal_timeout", "modal_queue_timeout"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"{name}={getattr(self, name)}: give a finite number of seconds above 0.")
        if not (0 <= self.modal_batch_window < math.inf and self.modal_buffer_containers >= 0):
            raise ConfigError("modal_batch_window and modal_buffer_containers are 0 or more.")
        if not self.modal_gpu_type or not self.modal_app_name:
            raise ConfigError("modal_gpu_type and modal_app_name cannot be empty.")


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
