"""A causal LM on its device, and how its log-probabilities are computed: the policy, or a reference of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from assay.backends.config import LocalBackend
from assay.backends.local import forward, hardware
from assay.backends.local.architectures.context import context_length
from assay.backends.local.decoder import Decoder
from assay.backends.local.module import Module
from assay.errors import ModelError
from assay.types import Datum


@dataclass(frozen=True)
class Network:
    """A model with the way it is run under the settings of the backend."""

    model: Any
    source: Decoder | Module
    local: LocalBackend
    device: torch.device

    @classmethod
    def of(cls, model: Any, local: LocalBackend, device: torch.device) -> Network:
        """Put a model on a device, in eval mode (see `evaluating`, which holds it there in every pass)."""
        model = model.to(device).eval()
        return cls(model, hardware.runner(model, local, device), local, device)

    @property
    def vocab_size(self) -> int:
        """Number of rows of the embedding: token ids lie below it."""
        return int(self.model.get_input_embeddings().weight.shape[0])

    @property
    def context_length(self) -> int:
        """Most tokens the model can attend to."""
        return context_length(self.model)

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Eval mode for the duration of a pass; then every module is again in the mode that the caller left it in.

        A caller who trains something else in between has called `train()`, and dropout would make the trained
        distribution another one than the sampled.
        """
        training = [module for module in self.model.modules() if module.training]
        if training:
            self.model.eval()
        try:
            yield
        finally:
            for module in training:
                module.training = True

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """The compute precision of the settings."""
        half = self.local.dtype == "bfloat16"
        return torch.autocast(self.device.type, torch.bfloat16) if half else contextlib.nullcontext()

    def head(self, states: Tensor) -> Tensor:
        """Logits [*, V] of what the head is given; by default at the precision of its weights, also under autocast."""
        if self.local.head_dtype == "bfloat16":
            return self.source.head(states)
        if isinstance(self.source, Module) and not self.source.separate:
            return states.float()  # logits already
        with torch.autocast(self.device.type, enabled=False):
            return self.source.head(states.to(self.model.get_output_embeddings().weight.dtype))

    def micro_batches(self, data: Sequence[Datum]) -> Iterator[forward.Packed]:
        """The data that have something to train, cut into micro-batches.

        Raises:
            ModelError: a sequence is longer than the context, or has a token that the model does not know.
        """
        trained = [i for i, d in enumerate(data) if d.mask.any()]
        chosen = [data[i] for i in trained]
        self._check(chosen)
        budget, fused = self.local.micro_batch_tokens, isinstance(self.source, Decoder)
        if isinstance(self.source, Module) and self.source.alone:
            budget = 1
        cost = forward.CPU_PASS_COST if self.device.type == "cpu" else forward.DEVICE_PASS_COST
        for groups in forward.plan(chosen, budget, share=fused, pass_cost=cost):
            yield forward.relabel(forward.pack(chosen, groups), trained)

    def _check(self, data: Sequence[Datum]) -> None:
        longest = max((len(d) for d in data), default=0)
        if longest > self.context_length:
            raise ModelError(
                f"A training sequence has {longest} tokens and the model's context is {self.context_length}, so its "
                "end cannot be trained. Use a model with a longer context (scratch.context_length) or shorter examples."
            )
        low = min((min(int(d.tokens.min()), int(d.targets.min())) for d in data), default=0)
        high = max((max(int(d.tokens.max()), int(d.targets.max())) for d in data), default=0)
        if low < 0 or high >= self.vocab_size:
            raise ModelError(
                f"A training sequence has token {low if low < 0 else high} and the model knows tokens 0 to "
                f"{self.vocab_size - 1}: the data were made with another tokenizer. Tokenize them with the model's own."
            )

    def targets(
        self, packed: forward.Packed, targets: Tensor, temperature: float, *, entropy_gradient: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Log-probabilities [N] and entropies [N] of the trained targets of a micro-batch; see `target_logprobs`."""
        with self.autocast():
            states = forward.states(self.source, packed, self.device)
            return forward.target_logprobs(
                states, targets, self.head, temperature, self.vocab_size, entropy_gradient=entropy_gradient
            )
