"""PyTorch's settings for the machine: once for the process, and in how a model is run."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from assay.backends.base import Precision
from assay.backends.config import LocalBackend
from assay.backends.local.architectures.context import warn_of_shortened_context
from assay.backends.local.architectures.fused import fused_decoder
from assay.backends.local.architectures.own_forward import own_forward, refuse_prompt_learning
from assay.backends.local.compiled import compiled
from assay.backends.local.decoder import Decoder
from assay.backends.local.module import Module, checkpoint_layers
from assay.errors import first_line, pip_install
from assay.storage.files import human_bytes
from assay.types import Check

logger = logging.getLogger(__name__)

ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""Where PyTorch reads the allocator's settings; which one comes first depends on its version."""


def prepare_process(local: LocalBackend) -> None:
    """Apply the settings that hold for the whole process; call before anything touches CUDA.

    Without CUDA nothing changes, since on a CPU the precision of products would change results for no gain.
    """
    if not (local.device.startswith("cuda") or (local.device == "auto" and torch.cuda.is_available())):
        logger.debug("No CUDA device is used: matmul_precision, cudnn_benchmark and cuda_allocator do nothing.")
        return
    _set_allocator(local.cuda_allocator)
    torch.set_float32_matmul_precision(local.matmul_precision)
    torch.backends.cudnn.benchmark = local.cudnn_benchmark


def precision(model: Any, local: LocalBackend, device: torch.device) -> Precision:
    """In which a model computes on a device."""
    if local.dtype == "bfloat16":
        sizes = model.config.get_text_config().to_dict()
        experts = (v for name, v in sizes.items() if "experts" in name and isinstance(v, int))
        return "other" if any(v > 1 for v in experts) else "bfloat16"
    return "tf32" if device.type == "cuda" and torch.get_float32_matmul_precision() != "highest" else "float32"


def checks(local: LocalBackend) -> list[Check]:
    """The device that a model would run on, and the versions of what runs it."""
    packages = ("torch", "transformers", "triton", "peft")
    found = {name: _version(name) for name in packages}
    lacking = [name for name in packages if not found[name] and name != "triton"]  # which torch brings where it can
    words = ", ".join(f"{name} {version or 'not installed'}" for name, version in found.items())
    return [
        Check("versions", not lacking, words, pip_install("torch")),
        _device_check(local.device),
    ]


def _device_check(wanted: str) -> Check:
    if wanted == "auto" and not torch.cuda.is_available():
        return Check("device", True, "no GPU that PyTorch can use; models run on the CPU")
    try:
        device = torch.device("cuda" if wanted == "auto" else wanted)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        cure = "set local.device=auto or cpu, or install a build of torch that has this device, and its driver"
        return Check("device", False, f"local.device={wanted}: {first_line(error)}", cure)
    if device.type != "cuda":
        return Check("device", True, f"{device} ({os.cpu_count()} cores)")
    free, total = torch.cuda.mem_get_info(device)
    name = torch.cuda.get_device_name(device)
    return Check("device", True, f"{name}, {human_bytes(free)} of {human_bytes(total)} free, CUDA {torch.version.cuda}")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _set_allocator(setting: str) -> None:
    """Put the setting into the environment, where it is read when CUDA starts; what the user put there stays."""
    if not setting:
        return
    present = [name for name in ALLOCATOR_VARIABLES if name in os.environ]
    if present:
        logger.debug("%s is set in the environment, so local.cuda_allocator does nothing.", present[0])
    elif torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        logger.warning(
            "local.cuda_allocator=%s comes too late: CUDA is in use already, and its allocator reads settings only "
            "when it starts. Make the backend before anything else uses CUDA, or set %s in the environment.",
            setting,
            ALLOCATOR_VARIABLES[0],
        )
    else:
        os.environ.update(dict.fromkeys(ALLOCATOR_VARIABLES, setting))


def runner(model: Any, local: LocalBackend, device: torch.device) -> Decoder | Module:
    """The way to run a model under these settings: the fused decoder, or its own forward pass where that must be.

    Raises:
        ModelError: it cannot be sampled, or would get other log-probabilities than its own forward pass gives.
    """
    refuse_prompt_learning(model)
    decoder = fused_decoder(model)
    if isinstance(decoder, str):
        logger.info("%s runs through its own forward pass: %s.", type(model).__name__, decoder)
        module = own_forward(model, device, local.dtype == "bfloat16")
        warn_of_shortened_context(model)
        if local.compile:
            logger.warning("local.compile=True does nothing: %s runs through its own module.", type(model).__name__)
        if local.use_gradient_checkpointing and not checkpoint_layers(model):
            logger.warning(
                "local.use_gradient_checkpointing=True does nothing: %s has no layers that support it. Lower "
                "local.micro_batch_tokens if memory runs out.",
                type(model).__name__,
            )
        return module
    half = local.dtype == "bfloat16" and device.type == "cuda"
    if local.dtype == "bfloat16" and not half:
        logger.debug("Attention stays in float32: in half precision its backward pass is slow on a CPU.")
    decoder = replace(
        decoder,
        attention_dtype=torch.bfloat16 if half else torch.float32,
        checkpointing=local.use_gradient_checkpointing,
    )
    if not local.compile:
        return decoder
    return compiled(decoder, model.config.vocab_size, device, local.dtype == "bfloat16")
