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
from transformers import DynamicCache
from transformers.modeling_layers import GradientCheckpointingLayer

CACHES = ("past_key_values", "cache_params")
"""Names by which architectures take and return what they keep of earlier tokens."""
LARGE = 100.0
"""Logits at which a scale or a soft cap shows."""


@dataclass
class NoCache:
    """The tokens so far [B, T], for architectures whose cache cannot be used."""

    tokens: Tensor

    def reorder_cache(self, rows: Tensor) -> None:
        """See the caches of transformers."""
        self.tokens = self.tokens.index_select(0, rows)


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
    cache: str | None
    """Name of the argument that takes the cache; None: whole sequences run again for each token."""
    positioned: bool
    """Whether the model takes the positions of its tokens."""
    pads_left: bool = False
    """Whether prompts of different lengths may be decoded side by side, padded on the left."""
    pads_right: bool = True
    """Whether sequences of different lengths may be trained side by side, padded on the right."""

    @classmethod
    def of(cls, model: Any) -> Module:
        """Find the seam of a causal LM (bare or wrapped by peft), and try it."""
        body = model.get_base_model() if hasattr(model, "get_base_model") else model
        taken = inspect.signature(body.forward).parameters
        cache = next((name for name in CACHES if name in taken), None)
        keeps, positioned = "logits_to_keep" in taken, "position_ids" in taken
        trunk, head = body.base_model, body.get_output_embeddings()
        if trunk is not body and head is not None and _is_only_a_head(model, trunk, head):
            return cls(model, trunk, head, True, keeps, cache, positioned)
        return cls(model, body, _identity, False, keeps, cache, positioned)

    @property
    def alone(self) -> bool:
        """Whether each training sequence has a pass of its own."""
        return not (self.separate and self.pads_right)

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

    def advance(self, tokens: Tensor, past: Any, **inputs: Any) -> tuple[Tensor, Any]:
        """Feed the next tokens [B, T]: what the head is given at the last of them, and what is kept of all so far.

        Args:
            past: what the last call kept; None at first, where the architecture makes its own kind of cache.
        """
        if self.cache is None:
            whole = tokens if past is None else torch.cat([past.tokens, tokens], dim=1)
            width = whole.shape[1]
            rows = torch.arange(width - 1, whole.numel(), width, device=whole.device)
            return self.states(rows, input_ids=whole, use_cache=False), NoCache(whole)
        if past is not None:
            inputs[self.cache] = past
        if self.separate:
            out = self.trunk(input_ids=tokens, use_cache=True, **inputs)
            states: Tensor = out.last_hidden_state
        else:
            kept = {"logits_to_keep": 1} if self.keeps else {}
            out = self.model(input_ids=tokens, use_cache=True, **kept, **inputs)
            states = out.logits
        present = getattr(out, self.cache, None)
        if present is None and past is None:
            # Fills a cache that it is given, but does not return one of its own.
            return self.advance(tokens, DynamicCache(config=self.model.config), **inputs)
        return states[:, -1], past if present is None else present


@torch.no_grad()
def _is_only_a_head(model: Any, trunk: Any, head: Any) -> bool:
    """Whether the model's logits are the head over the trunk's states.

    Random states take the place of the trunk's, of a size at which the head's logits are large: at the small logits of
    a freshly initialised model, a soft cap would not be seen.
    """
    weight = model.get_input_embeddings().weight
    tokens = torch.zeros((1, 4), dtype=torch.long, device=weight.device)
    given: list[Tensor] = []

    def replace(_: Any, __: Any, out: Any) -> Any:
        states = torch.randn(out.last_hidden_state.shape, generator=torch.Generator().manual_seed(0))
        states = states.to(out.last_hidden_state)
        largest = float(head(states).abs().max())
        given.append(states * (LARGE / largest) if largest > 0 else states)
        out.last_hidden_state = given[0]
        return out

    handle = trunk.register_forward_hook(replace)
    try:
        logits = model(input_ids=tokens, use_cache=False).logits
    finally:
        handle.remove()
    if not given or logits.shape[:2] != tokens.shape:
        return False
    want = head(given[0])
    shows = bool(want.abs().max() > LARGE / 2)
    return shows and torch.allclose(logits.float(), want.float(), rtol=1e-3, atol=LARGE / 1e4)


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
