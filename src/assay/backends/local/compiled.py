"""The halves of a decoder's layers through `torch.compile`: fewer kernels, each doing more.

What lies between the halves (attention, the cache) is already fused or changes memory, and is not compiled. All layers
share the compiled code.
"""

from __future__ import annotations

import logging
from dataclasses import replace

import torch
from torch import Tensor

from assay.backends.local.decoder import Decoder, Layer, extend, prefill

logger = logging.getLogger(__name__)

VARIANTS = 32
"""Ways in which one half of a layer may be compiled before PyTorch gives up on it and runs it as it is."""


def compiled(decoder: Decoder, vocab_size: int, device: torch.device, half: bool) -> Decoder:
    """The decoder with compiled layers; the decoder itself if they cannot be compiled or give other results.

    Args:
        vocab_size: token ids of the trial lie below it.
        half: whether layers run under autocast to bfloat16.
    """
    # Takes seconds to import, and few runs use it.
    from torch._dynamo import config as dynamo_config

    # Prompts, continuations and single tokens, with gradient and without, are functions of their own.
    dynamo_config.recompile_limit = max(dynamo_config.recompile_limit, VARIANTS)
    candidate = replace(decoder, layers=tuple(_compiled_layer(layer) for layer in decoder.layers))
    try:
        want, got = (_trial(d, vocab_size, device, half) for d in (decoder, candidate))
    except RuntimeError as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        logger.warning(
            "local.compile=True does nothing: torch.compile failed (%s). It needs a C++ compiler on a CPU and Triton "
            "on CUDA. The layers run uncompiled.",
            reason,
        )
        return decoder
    difference = max(float((a - b).norm() / (b.norm() + 1e-9)) for a, b in zip(got, want, strict=True))
    if not difference <= (5e-2 if half else 1e-3):
        logger.warning(
            "local.compile=True does nothing: compiled layers give other results (difference of %.2g of the norm). "
            "The layers run uncompiled.",
            difference,
        )
        return decoder
    return candidate


def _compiled_layer(layer: Layer) -> Layer:
    return Layer(torch.compile(layer.enter, dynamic=True), torch.compile(layer.leave, dynamic=True))


def _trial(decoder: Decoder, vocab_size: int, device: torch.device, half: bool) -> list[Tensor]:
    """Final hidden states of random tokens; with weights that are trained also a gradient through all layers."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(vocab_size, (2, 9), generator=generator).to(device)
    continuations = torch.randint(vocab_size, (2, 3, 4), generator=generator).to(device)
    with torch.enable_grad(), torch.autocast(device.type, torch.bfloat16, enabled=half):
        last, prefix = prefill(decoder, tokens, torch.tensor([9, 9]))
        hidden = extend(decoder, prefix, continuations)
        states = torch.cat([last.flatten(0, -2), hidden.flatten(0, -2)]).float()
    if not states.requires_grad:
        return [states]
    # Not the sum of squares: behind a norm it is constant, and its gradient is only rounding error.
    ramp = torch.linspace(-1, 1, states.numel(), device=device).view_as(states)
    (gradient,) = torch.autograd.grad((states * ramp).sum(), prefix.values[:1])
    return [states.detach(), gradient.float()]
