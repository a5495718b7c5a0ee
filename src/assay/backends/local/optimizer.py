"""AdamW in the variants that PyTorch has; all take the same step, to rounding."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from assay.backends.base import AdamParams
from assay.backends.config import AdamWKind
from assay.errors import ModelError, NonFiniteGradientError

FUSED_DEVICES = ("cpu", "cuda")


def adamw(parameters: Iterable[Tensor], kind: AdamWKind) -> torch.optim.AdamW:
    """AdamW over trained tensors; matrices decay, embeddings and adapters among them, and norms and biases do not.

    Embeddings decay because a tied one is the output head as well; Hugging Face's trainer does the same.
    """
    tensors = list(parameters)
    groups = [
        {"params": [p for p in tensors if p.dim() >= 2], "decayed": True},
        {"params": [p for p in tensors if p.dim() < 2], "decayed": False},
    ]
    if kind == "auto":
        fits = all(t.device.type in FUSED_DEVICES and t.dtype == torch.float32 for t in tensors)
        kind = "fused" if fits else "foreach"
    return torch.optim.AdamW(
        [g for g in groups if g["params"]], lr=0.0, fused=kind == "fused", foreach=kind == "foreach"
    )


def take_step(optimizer: torch.optim.AdamW, trained: Iterable[Tensor], params: AdamParams, number: int) -> float:
    """Apply and clear the accumulated gradient; returns its norm before clipping.

    Args:
        number: of the step, for the message of an error.

    Raises:
        NonFiniteGradientError: the gradient was cleared, and nothing else changed.
    """
    gradients = [p for p in trained if p.grad is not None]
    norm = torch.nn.utils.get_total_norm([p.grad for p in gradients if p.grad is not None])
    if not torch.isfinite(norm):
        optimizer.zero_grad(set_to_none=True)
        raise NonFiniteGradientError(
            f"The gradient norm is {float(norm)} at optimizer step {number}, so a step would destroy the weights; they "
            "are unchanged. Lower the learning rate or look at the rewards."
        )
    if params.grad_clip_norm:
        torch.nn.utils.clip_grads_with_norm_(gradients, params.grad_clip_norm, norm)
    for group in optimizer.param_groups:
        group["lr"], group["betas"], group["eps"] = params.learning_rate, (params.beta1, params.beta2), params.eps
        group["weight_decay"] = params.weight_decay if group["decayed"] else 0.0
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return float(norm)


def save_adamw(optimizer: torch.optim.AdamW, path: Path) -> None:
    """Write the state to a file."""
    with open(path, "wb") as file:
        try:
            torch.save(optimizer.state_dict(), file)
        except RuntimeError as error:
            # torch hides the cause (a full disk, say) behind an error about its position in the file.
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            raise


def load_adamw(optimizer: torch.optim.AdamW, state: dict[str, Any]) -> None:
    """Take over a saved state without the variant it was saved with.

    Raises:
        KeyError, ValueError: the state is not one of this optimizer.
    """
    saved, own = state["param_groups"], optimizer.param_groups
    if len(saved) != len(own):
        raise ValueError(f"the optimizer state has {len(saved)} groups, not {len(own)}")
    groups = [
        group | {name: mine[name] for name in ("fused", "foreach")} for group, mine in zip(saved, own, strict=True)
    ]
    optimizer.load_state_dict({**state, "param_groups": groups})


def check_still_trained(trained: Mapping[str, Tensor]) -> None:
    """Refuse to train weights that were frozen after the optimizer was made: it would go on without them.

    Raises:
        ModelError: as said.
    """
    frozen = [name for name, parameter in trained.items() if not parameter.requires_grad]
    if frozen:
        raise ModelError(
            f"{len(frozen)} of {len(trained)} trained weights no longer require a gradient ({frozen[0]} is the first): "
            "they were frozen after the trainer was made. Unfreeze them, or make a new trainer, which then trains the "
            "others."
        )
