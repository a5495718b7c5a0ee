"""Where a policy lives: the protocol (`base`), PyTorch on this machine (`local`), and how one is opened (`named`)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

# Otherwise, on some processors, the rounding of matrix products depends on where the operands lie in memory, and a
# resumed run would not be the same run bit for bit. MKL reads this with its first product.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")

if TYPE_CHECKING:
    from assay.backends.base import (
        AdamParams,
        Backend,
        Capabilities,
        ForwardBackwardOutput,
        KLTerm,
        LossSpec,
        Tokenizer,
    )
    from assay.backends.config import LocalBackend, ScratchModel
else:
    from assay.exports import lazy_exports

    __getattr__, __dir__ = lazy_exports(__name__)

__all__ = [
    "AdamParams",
    "Backend",
    "Capabilities",
    "ForwardBackwardOutput",
    "KLTerm",
    "LocalBackend",
    "LossSpec",
    "ScratchModel",
    "Tokenizer",
]
