"""How much memory tensors take where host code is recorded: there they take none, and on a GPU no more than it has."""

from __future__ import annotations

import torch

from assay.kernels.inside.pretend_cuda import TOTAL_MEMORY
from assay.kernels.inside.record.host.addresses import is_gone


class Room:
    """The storages of a recording that were made and are not gone, on the GPU and on the host."""

    def __init__(self) -> None:
        self._held: dict[bool, list[torch.UntypedStorage]] = {True: [], False: []}
        self._bytes = {True: 0, False: 0}

    def take(self, storage: torch.UntypedStorage, on_gpu: bool) -> None:
        """Take memory that is made into the account.

        Raises:
            torch.OutOfMemoryError: there is no room for it beside the others, as PyTorch raises it.
        """
        self._held[on_gpu].append(storage)
        self._bytes[on_gpu] += storage.nbytes()
        if self._bytes[on_gpu] > TOTAL_MEMORY:
            self._held[on_gpu] = [held for held in self._held[on_gpu] if held is storage or not is_gone(held)]
            self._bytes[on_gpu] = sum(held.nbytes() for held in self._held[on_gpu])
        if self._bytes[on_gpu] > TOTAL_MEMORY:
            there = "CUDA" if on_gpu else "The host is"
            raise torch.OutOfMemoryError(
                f"{there} out of memory. Tried to allocate {storage.nbytes()} bytes, which makes {self._bytes[on_gpu]} "
                f"with what is allocated. The GPU that is pretended has {TOTAL_MEMORY} bytes"
            )
