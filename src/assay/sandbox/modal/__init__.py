"""The sandbox's jobs in Modal's containers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from assay.sandbox.modal.config import ModalConfig
    from assay.sandbox.modal.sandbox import ModalSandbox
else:
    from assay.exports import lazy_exports

    __getattr__, __dir__ = lazy_exports(__name__)

__all__ = ["ModalConfig", "ModalSandbox"]
