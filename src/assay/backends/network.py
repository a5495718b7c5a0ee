"""A causal LM on its device, with its weights as a `Decoder` where its architecture has one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from assay.backends.decoder import Decoder, fused_decoder
from assay.backends.models import context_length


@dataclass(frozen=True)
class Network:
    """What log-probabilities are computed with."""

    model: Any
    decoder: Decoder | None
    device: torch.device

    @classmethod
    def of(cls, model: Any, device: torch.device) -> Network:
        """Put a model on a device, in eval mode: dropout would make trained and sampled distributions differ."""
        model = model.to(device).eval()
        return cls(model, fused_decoder(model, model.config), device)

    @property
    def vocab_size(self) -> int:
        """Number of rows of the embedding: token ids lie below it."""
        return int(self.model.get_input_embeddings().weight.shape[0])

    @property
    def context_length(self) -> int:
        """Most tokens the model can attend to."""
        return context_length(self.model)
