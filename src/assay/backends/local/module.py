"""A causal LM run through its own forward pass, for architectures that have no `Decoder`.

Only positions that are wanted reach the output head. Where logits are more than a head over hidden states (a scale, a
soft cap), the module must compute them itself, and then does so for the positions of one sequence at a time.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer


@dataclass(frozen=True)
class Module:
    """A causal LM, and where it can be cut in two."""

    model: Any
    trunk: Any
    """The model without its head: gives hidden states [B, L, E]."""
    head: Callable[[Tensor], Tensor]
    """What `states` gives -> logits [*, V]."""
    separate: bool
    """Whether logits are just the head over hidden states."""
    keeps: bool
    """Whether the model accepts the positions of which to compute logits."""

    @classmethod
    def of(cls, model: Any) -> Module:
        """Find the seam of a causal LM (bare or wrapped by peft), and try it on random tokens."""
        body = model.get_base_model() if hasattr(model, "get_base_model") else model
        keeps = "logits_to_keep" in inspect.signature(body.forward).parameters
        apart = cls(model, body.base_model, body.get_output_embeddings(), True, keeps)
        if body.base_model is not body and apart.head is not None and apart._agrees():
            return apart
        return cls(model, body, _identity, False, keeps)

    @torch.no_grad()
    def _agrees(self) -> bool:
        device = next(self.model.parameters()).device
        generator = torch.Generator().manual_seed(0)
        tokens = torch.randint(self.model.config.vocab_size, (2, 5), generator=generator).to(device)
        inputs = {"attention_mask": torch.ones_like(tokens), "use_cache": False}
        want = self.model(input_ids=tokens, **inputs).logits
        got = self.head(self.trunk(input_ids=tokens, **inputs).last_hidden_state)
        return torch.allclose(got.float(), want.float(), rtol=1e-3, atol=1e-3)

    def states(self, rows: Tensor, **inputs: Any) -> Tensor:
        """What the head is given at `rows` [N], numbered through the tokens [B, L]: hidden states [N, E].

        Where head and trunk cannot be told apart: logits [N, V]. `inputs` go to the module's forward.
        """
        if self.separate:
            hidden: Tensor = self.trunk(**inputs).last_hidden_state
            return hidden.flatten(0, 1).index_select(0, rows)
        width = inputs["input_ids"].shape[1]
        if not self.keeps:
            logits: Tensor = self.model(**inputs).logits
            return logits.flatten(0, 1).index_select(0, rows)
        columns, places = torch.unique(rows % width, return_inverse=True)
        logits = self.model(**inputs, logits_to_keep=columns).logits
        return logits[rows // width, places]


def _identity(states: Tensor) -> Tensor:
    return states


def checkpoint_layers(model: Any) -> int:
    """Let every layer of a Hugging Face model keep only its inputs for the backward pass; returns how many there are.

    The library's own switch works in train mode alone, which would also switch dropout on.
    """
    layers = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
    for layer in layers:
        layer.forward = partial(_recomputed, layer.forward)
    return len(layers)


def _recomputed(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)
