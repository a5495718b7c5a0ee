"""Isolated processes for code nobody trusts. `base` has the records, `local` the workers on this
machine, `modal` the containers of Modal."""

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

__all__ = [
    "AfterRound",
    "Buffer",
    "End",
    "Harness",
    "Job",
    "JobResult",
    "Limits",
    "Profile",
    "ReadInputs",
    "Round",
    "Sandbox",
    "WriteOutputs",
]
