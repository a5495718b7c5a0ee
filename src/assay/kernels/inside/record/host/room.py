"""How much memory tensors take where host code is recorded: there they take none, and on a GPU no more than it has."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import TypeVar

import torch

from assay.kernels.inside.pretend_cuda import TOTAL_MEMORY
from assay.kernels.inside.record.host.addresses import is_gone
from assay.kernels.inside.record.reads import NotRecordableError

T = TypeVar("T")
_GROWS = (
    "each call of forward keeps more memory than the one before it ({0} bytes more), until a GPU is full. Make what "
    "later calls use in the constructor or the first call, and let go of all else"
)


class Room:
    """The storages of a recording that were made and are not gone, on the GPU and on the host."""

    def __init__(self) -> None:
        self._held: dict[bool, list[torch.UntypedStorage]] = {True: [], False: []}
        self._bytes = {True: 0, False: 0}
        self._more = 0

    def take(self, storage: torch.UntypedStorage, on_gpu: bool) -> None:
        """Take memory that is made into the account.

        Raises:
            torch.OutOfMemoryError: there is no room for it beside the others, as PyTorch raises it.
        """
        self._held[on_gpu].append(storage)
        self._bytes[on_gpu] += storage.nbytes()
        if self._bytes[on_gpu] > TOTAL_MEMORY:
            self._settle(on_gpu, storage)
        if self._bytes[on_gpu] > TOTAL_MEMORY:
            there = "CUDA" if on_gpu else "The host is"
            raise torch.OutOfMemoryError(
                f"{there} out of memory. Tried to allocate {storage.nbytes()} bytes, which makes {self._bytes[on_gpu]} "
                f"with what is allocated. The GPU that is pretended has {TOTAL_MEMORY} bytes"
            )

    def watched(self, call: Callable[[], T]) -> T:
        """Make a call, note whether calls keep more memory each time, and return what it returns.

        A call that keeps more is made once more, between two garbage collections: it may have left memory in cycles, or
        made the last of several buffers that it uses in turn.
        """
        before = self._kept()
        result = call()
        if self._kept() > before:
            gc.collect()
            before = self._kept()
            call()
            gc.collect()
            self._more = self._kept() - before
        return result

    def check_growth(self) -> None:
        """Raises NotRecordableError where calls keep more memory each time."""
        if self._more > 0:
            raise NotRecordableError(_GROWS.format(self._more))

    def _kept(self) -> int:
        """Bytes of all that is not gone."""
        for on_gpu in self._held:
            self._settle(on_gpu)
        return sum(self._bytes.values())

    def _settle(self, on_gpu: bool, made: torch.UntypedStorage | None = None) -> None:
        """Drop what is gone, but for memory that is only being made."""
        self._held[on_gpu] = [held for held in self._held[on_gpu] if held is made or not is_gone(held)]
        self._bytes[on_gpu] = sum(held.nbytes() for held in self._held[on_gpu])
