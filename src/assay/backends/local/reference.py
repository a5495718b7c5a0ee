"""The reference policy of a KL penalty: a model of its own, frozen weights of the policy, or the base below LoRA.

`FrozenWeights` swaps a copy of the trained tensors in for the duration of a forward pass; `BelowAdapters` switches the
adapters off and costs no memory; `OwnModel` is a second network, of any architecture with the policy's vocabulary.

`of_start` holds a policy to where it is now. "Adapters off" is that policy only where nothing but LoRA factors is
trained and they add nothing yet: biases, norms and embeddings stay trained when adapters are off, and adapters that
were trained before, or split off the base weights (PiSSA), are part of the start.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from assay.backends.local import forward
from assay.backends.local.network import Network
from assay.errors import ModelError
from assay.types import Datum

PROBE = (2, 16)
"""Sequences and tokens on which a policy is measured with its adapters on and off."""


class Reference(Protocol):
    """A policy that is not trained."""

    def network(self) -> contextlib.AbstractContextManager[Network]:
        """The network to compute with, for the duration."""
        ...

    def check_refresh(self, mix: float) -> None:
        """Refuse a refresh that is not possible; changes nothing.

        Raises:
            ModelError: its weights cannot be mixed with the policy's.
        """
        ...

    def refresh(self, mix: float) -> Reference:
        """The reference moved towards the policy's present weights by the share `mix`.

        Raises:
            ModelError: as `check_refresh`.
        """
        ...

    def weights(self) -> Mapping[str, Tensor] | None:
        """What a checkpoint must hold of it; None where it can be made again without."""
        ...


class FrozenWeights:
    """A copy of the policy's trained weights, swapped in while it is used."""

    def __init__(
        self, policy: Network, trained: Mapping[str, Tensor], copy: Mapping[str, Tensor] | None = None
    ) -> None:
        """`copy` are weights from a checkpoint; by default the present ones.

        Raises:
            ValueError: `copy` are not those of the trained tensors.
        """
        shapes = [{name: tuple(t.shape) for name, t in part.items()} for part in (trained, copy or trained)]
        if shapes[0] != shapes[1]:
            names = sorted(name for name, _ in shapes[0].items() ^ shapes[1].items())
            raise ValueError(f"the reference's weights are of another model: {', '.join(dict.fromkeys(names[:3]))}")
        self._policy = policy
        self._trained = trained
        self._copy = {name: p.detach().clone() for name, p in trained.items()} if copy is None else dict(copy)

    @contextlib.contextmanager
    def network(self) -> Iterator[Network]:
        """See `Reference`. The policy's tensors come back untouched."""
        present = {name: p.data for name, p in self._trained.items()}
        try:
            for name, parameter in self._trained.items():
                parameter.data = self._copy[name]
            yield self._policy
        finally:
            for name, parameter in self._trained.items():
                parameter.data = present[name]

    def check_refresh(self, mix: float) -> None:
        """See `Reference`. Adapters cannot be mixed: the mean of two factors is not the mean of their products."""
        if hasattr(self._policy.model, "disable_adapter"):
            _refuse_mixed_adapters(mix)

    def refresh(self, mix: float) -> Reference:
        """See `Reference`."""
        self.check_refresh(mix)
        _mix(self._copy, self._trained, mix)
        return self

    def weights(self) -> Mapping[str, Tensor]:
        """See `Reference`."""
        return self._copy


class BelowAdapters:
    """The policy with its LoRA adapters switched off."""

    def __init__(self, policy: Network, trained: Mapping[str, Tensor]) -> None:
        """Raises ModelError if there are no adapters."""
        if not hasattr(policy.model, "disable_adapter"):
            raise ModelError("This model has no LoRA adapters, so it has no base model to be the reference.")
        self._policy = policy
        self._trained = trained

    @contextlib.contextmanager
    def network(self) -> Iterator[Network]:
        """See `Reference`."""
        with self._policy.model.disable_adapter():
            yield self._policy

    def check_refresh(self, mix: float) -> None:
        """See `Reference`. Only `mix` 1 has a meaning."""
        _refuse_mixed_adapters(mix)

    def refresh(self, mix: float) -> Reference:
        """See `Reference`: from now on the reference is a copy of the adapters."""
        self.check_refresh(mix)
        return FrozenWeights(self._policy, self._trained)

    def weights(self) -> None:
        """See `Reference`."""


class OwnModel:
    """A second network. A refresh changes the caller's model in place."""

    def __init__(self, reference: Network, policy: Network) -> None:
        """Raises ModelError where the vocabularies differ."""
        if reference.vocab_size != policy.vocab_size:
            raise ModelError(
                f"The reference model knows {reference.vocab_size} tokens and the policy {policy.vocab_size}: token "
                "ids would mean different things, and the KL penalty would be meaningless. Give a reference with the "
                "policy's tokenizer and vocabulary (its architecture may differ)."
            )
        self._reference = reference
        self._policy = policy
        self._original: Mapping[str, Tensor] | None = None
        """The caller's weights, once they were changed."""
        for parameter in reference.model.parameters():
            parameter.requires_grad_(False)

    @contextlib.contextmanager
    def network(self) -> Iterator[Network]:
        """See `Reference`."""
        yield self._reference

    def check_refresh(self, mix: float) -> None:
        """See `Reference`."""
        policy = self._policy.model.named_parameters()
        if {n: t.shape for n, t in self._parameters().items()} != {n: t.shape for n, t in policy}:
            raise ModelError(
                "The reference model has other weights than the policy, so the policy's weights cannot be mixed into "
                "it. Give a reference of the policy's architecture, or turn the refresh off (ref_refresh_every=0)."
            )

    def refresh(self, mix: float) -> Reference:
        """See `Reference`."""
        self.check_refresh(mix)
        if self._original is None:
            self._original = {name: p.detach().cpu().clone() for name, p in self._parameters().items()}
        _mix(self._parameters(), dict(self._policy.model.named_parameters()), mix)
        return self

    def weights(self) -> Mapping[str, Tensor] | None:
        """See `Reference`."""
        return self._parameters() if self._original is not None else None

    def load(self, weights: Mapping[str, Tensor] | None) -> None:
        """Take over the weights of a checkpoint; one that has none was written before the first refresh."""
        if weights is None:
            weights, self._original = self._original, None
        elif self._original is None:
            self._original = {name: p.detach().cpu().clone() for name, p in self._parameters().items()}
        if weights is not None:
            for name, parameter in self._parameters().items():
                parameter.data.copy_(weights[name])

    def _parameters(self) -> dict[str, Tensor]:
        return dict(self._reference.model.named_parameters())


def of_start(policy: Network, trained: Mapping[str, Tensor]) -> Reference:
    """The policy as it is now: the adapters switched off where that is the same policy and will stay it, or a copy."""
    if adapters_own(policy.model, trained) and _add_nothing(policy.model) and _same_without_adapters(policy):
        return BelowAdapters(policy, trained)
    return FrozenWeights(policy, trained)


def adapters_own(model: Any, trained: Mapping[str, Tensor]) -> bool:
    """Whether all that is trained are factors of LoRA, which are gone when adapters are switched off."""
    if not hasattr(model, "disable_adapter"):
        return False
    from peft.tuners.lora import LoraLayer
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils.other import AuxiliaryTrainingWrapper

    factors: set[int] = set()
    for module in model.modules():
        # Wrappers hold whole copies of modules (`modules_to_save`) or rows of embeddings.
        if isinstance(module, AuxiliaryTrainingWrapper) or (
            isinstance(module, BaseTunerLayer) and not isinstance(module, LoraLayer)
        ):
            return False
        if isinstance(module, LoraLayer):
            parts = (module.lora_A, module.lora_B, module.lora_embedding_A, module.lora_embedding_B)
            factors |= {id(p) for part in parts for p in part.parameters()}
    return {id(p) for p in trained.values()} <= factors


def _add_nothing(model: Any) -> bool:
    """Whether the factor that each active LoRA adapter applies last is 0, so that no input can show it."""
    from peft.tuners.lora import LoraLayer

    for layer in (m for m in model.modules() if isinstance(m, LoraLayer)):
        for adapter in layer.active_adapters:
            last = [*layer.lora_B[adapter].parameters()] if adapter in layer.lora_B else []
            # The columns of A are those of the tokens.
            last += [layer.lora_embedding_A[adapter]] if adapter in layer.lora_embedding_A else []
            if layer.merged or any(bool(p.any()) for p in last):
                return False
    return True


@torch.no_grad()
def _same_without_adapters(policy: Network) -> bool:
    """Whether the policy gives random tokens the same log-probabilities, to the last bit, with its adapters off."""
    count, length = PROBE[0], min(PROBE[1], policy.context_length)
    ids = np.random.default_rng(0).integers(0, policy.vocab_size, (count, length + 1))
    zeros, ones = np.zeros(length, np.float32), np.ones(length, np.float32)
    data = [Datum(row[:-1], row[1:], zeros, zeros, ones) for row in ids]
    found = []
    for way in (contextlib.nullcontext(policy), BelowAdapters(policy, {}).network()):
        with way as network, network.evaluating():
            parts = [(p, forward.streams(data, p, policy.device).targets) for p in network.micro_batches(data)]
            found.append(torch.cat([network.targets(packed, targets, 1.0)[0] for packed, targets in parts]))
    return torch.equal(*found)


@torch.no_grad()
def _mix(targets: Mapping[str, Tensor], sources: Mapping[str, Tensor], mix: float) -> None:
    for name, target in targets.items():
        target.lerp_(sources[name].detach().to(target), mix)


def _refuse_mixed_adapters(mix: float) -> None:
    if mix != 1:
        raise ModelError(
            f"A reference of LoRA adapters cannot be mixed with the policy's (ref_refresh_mix={mix:g}): the mean of "
            "two factors is not the mean of their products. Set ref_refresh_mix=1, or train all weights."
        )
