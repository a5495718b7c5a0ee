"""How a network is sampled: step by step, or (on CUDA) in captured steps with weights of their own."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from functools import partial

import torch

from assay.backends.local.decoder import Decoder
from assay.backends.local.network import Network
from assay.backends.local.sampling.cuda_graphs import StaticDecode
from assay.backends.local.sampling.half_copies import HalfCopies
from assay.backends.local.sampling.sampler import Decode, decode
from assay.backends.local.sampling.steppers import FusedStepper, ModuleStepper, Stepper

logger = logging.getLogger(__name__)


class Decoding:
    """The way to decode with a network; what it needs beyond the network's weights is made when first used."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self.static = self._static()
        self._copies: HalfCopies | None = None

    @contextlib.contextmanager
    def ready(self) -> Iterator[Decode]:
        """Decode with the present weights, in the network's compute precision, for the duration."""
        network = self._network
        if self.static is None:
            with network.autocast():
                yield partial(decode, self._stepper, network.device)
        elif network.local.dtype == "float32":
            yield self.static
        else:
            if self._copies is None:
                half_head = network.local.head_dtype == "bfloat16"
                self._copies = HalfCopies(network.model, None if half_head else network.model.get_output_embeddings())
            # What autocast casts, it would keep and then free, and captured steps would go on reading it.
            with self._copies.in_place(), torch.autocast(network.device.type, torch.bfloat16, cache_enabled=False):
                yield self.static

    def _stepper(self) -> Stepper:
        network = self._network
        if isinstance(network.source, Decoder):
            return FusedStepper(network.source, network.head)
        return ModuleStepper(network.source, network.head, network.context_length)

    def _static(self) -> StaticDecode | None:
        network = self._network
        if not network.local.cuda_graphs:
            return None
        source = network.source
        if network.device.type != "cuda" or not isinstance(source, Decoder):
            logger.debug("No CUDA graphs: they need CUDA and a fused decoder.")
            return None
        return StaticDecode(source, network.head, network.device, capture=True)
