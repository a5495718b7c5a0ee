"""Isolated processes for untrusted code: `LocalSandbox` on this machine, `assay.sandbox.modal` in containers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from assay.sandbox.base import (
        AfterRound,
        Buffer,
        End,
        Harness,
        Job,
        JobResult,
        Limits,
        Profile,
        ReadInputs,
        Round,
        Sandbox,
        WriteOutputs,
    )
    from assay.sandbox.local import LocalConfig, LocalSandbox
    from assay.sandbox.lockstep import Group, run_in_step
else:
    from assay.exports import lazy_exports

    __getattr__, __dir__ = lazy_exports(__name__)

__all__ = [
    "AfterRound",
    "Buffer",
    "End",
    "Group",
    "Harness",
    "Job",
    "JobResult",
    "Limits",
    "LocalConfig",
    "LocalSandbox",
    "Profile",
    "ReadInputs",
    "Round",
    "Sandbox",
    "WriteOutputs",
    "run_in_step",
]
