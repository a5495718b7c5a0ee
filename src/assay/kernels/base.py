"""What settings of the grader and its stages have in common: the choices that they share, and the limits of GPUs."""

from __future__ import annotations

from typing import Literal, get_args

from assay.errors import ConfigError

Language = Literal["triton", "cuda"]
"""Language of a candidate's kernels."""
Precision = Literal["float32", "float16", "bfloat16"]
"""Working precision of inputs, weights and outputs."""
Policy = Literal["strict", "partial"]
"""Whether kernels must do all of the work, or may leave a part of it to PyTorch."""
TimedAgainst = Literal["eager", "compile", "graph"]
"""The reference as PyTorch runs it, under `torch.compile`, or its launches replayed as a CUDA graph."""

Manner = Literal["scaled", "larger", "within"]
"""How weights are moved of which a reference takes no others (`inside.problem.weights.move_in_manner`)."""
MANNERS: tuple[Manner, ...] = get_args(Manner)
"""In the order in which they are tried."""

SHARED_LIMITS = {
    "sm_80": 166_912,
    "sm_86": 101_376,
    "sm_89": 101_376,
    "sm_90": 232_448,
    "sm_100": 232_448,
}
"""Bytes of shared memory that one block may have, by architecture."""


def shared_limit(arch: str) -> int:
    """Bytes of shared memory that a block may have.

    Raises:
        ConfigError: an architecture that is not in the table.
    """
    if arch not in SHARED_LIMITS:
        raise ConfigError(
            f"arch={arch!r}: shared memory is known for {', '.join(SHARED_LIMITS)} only. Name one of them."
        )
    return SHARED_LIMITS[arch]
