"""A backend over a model that the caller made: what `GRPOTrainer(model, ref_model, config)` trains."""

from __future__ import annotations

import logging
from typing import Any

import chz
import torch

from assay.backends.local.backend import TorchBackend
from assay.errors import ModelError
from assay.grpo.config import GRPOConfig

logger = logging.getLogger(__name__)


def own_backend(model: Any, ref_model: Any, config: GRPOConfig) -> TorchBackend:
    """A backend that trains `model` where it is; see `GRPOTrainer`.

    Raises:
        ModelError: nothing of the model is trained, or the reference does not fit it.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    if not trained:
        raise ModelError(
            "No parameter of the model requires a gradient, so training would change nothing. Unfreeze it, or add "
            "LoRA adapters with peft."
        )
    if any(getattr(module, "merged", False) for module in model.modules()):
        raise ModelError(
            "Adapters of the model are merged into its base weights, so they would get no gradient. Call "
            "model.unmerge_adapter() to train them, or model.merge_and_unload() to train the merged weights."
        )
    if ref_model is model:
        raise ModelError(
            "ref_model is the model itself, so the KL penalty would always be 0. Give a copy of it, or None for one of "
            "the starting weights."
        )
    if ref_model is not None and {id(p) for p in ref_model.parameters()} & {id(p) for p in trained}:
        raise ModelError(
            "ref_model shares trained weights with the model, so it would move along with it (peft wraps a model in "
            "place: the model below it has the adapters too). Give None for the policy as it is now, or load the "
            "reference on its own."
        )
    if ref_model is not None and not config.kl_coef:
        raise ModelError(
            "ref_model is given, but with kl_coef=0 it is never used. Set kl_coef, or leave ref_model out."
        )
    device = next(model.parameters()).device
    half = any(p.dtype in (torch.bfloat16, torch.float16) for p in model.parameters())
    computes = config.local_backend(str(device), half)
    if any(p.dtype != torch.float32 for p in trained):
        logger.warning("%s", _of_precision(computes.dtype, device.type, next(p.dtype for p in trained)))
        for parameter in trained:
            parameter.data = parameter.data.float()
    reference = ref_model
    if config.kl_coef and ref_model is None:
        reference = "start"
    # The caller has already set the threads of their process.
    local = chz.replace(computes, torch_threads=torch.get_num_threads())
    backend = TorchBackend(model, None, local, reference)
    if config.ref_refresh_every:
        backend.check_refresh(config.ref_refresh_mix)
    return backend


def _of_precision(computes: str, device: str, came: torch.dtype) -> str:
    """What becomes of trained weights in half precision, in which precision is computed, and how to sample alike."""
    if computes == "bfloat16":
        alike = (
            f"wrap your own generate and forward calls in torch.autocast({device!r}, dtype=torch.bfloat16), or set "
            "GRPOConfig(dtype='float32') for float32 in both"
        )
    else:
        alike = "call your own generate and forward without autocast"
    plain = str(came).removeprefix("torch.")
    return (
        "Trained weights in half precision become float32: half precision would round small updates away. The "
        "trainer's forward passes compute in "
        f"{computes}{'' if computes == plain else f', not in {plain} as the model came'}. To sample with the same "
        f"numbers, {alike}."
    )
