"""Adapters as files, without pickle: in peft's own format, and beside it the optimizer's state as safetensors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from assay.backends.local.adapters.bank import Adapter, AdapterBank, sizes
from assay.backends.local.adapters.layers import Weights
from assay.errors import CheckpointError, first_line
from assay.types import Json

WEIGHTS = "adapter_model.safetensors"
CONFIG = "adapter_config.json"
OPTIMIZER = "optimizer.safetensors"
PREFIX = "base_model.model."
"""Before the names of layers in files that peft reads."""
MOMENTS = ("exp_avg", "exp_avg_sq")


def write(path: Path, bank: AdapterBank, adapter: Adapter, base_model: str, *, optimizer: bool) -> None:
    """Write an adapter into the folder `path`, which exists; with `optimizer` so that training goes on exactly.

    Raises:
        OSError, SafetensorError: the disk is full, or cannot be written to.
    """
    save_file({PREFIX + name: t.detach().contiguous().cpu() for name, t in adapter.trained.items()}, path / WEIGHTS)
    config: dict[str, Json] = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_model,
        "r": adapter.shape.rank,
        "lora_alpha": bank.local.lora_alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": list(adapter.weights.pairs),
        "fan_in_fan_out": any(type(bank.layers[n][0].base).__name__ == "Conv1D" for n in adapter.weights.pairs),
        "inference_mode": True,
    }
    (path / CONFIG).write_text(json.dumps(config, indent=1))
    if optimizer:
        save_file(_optimizer_tensors(adapter), path / OPTIMIZER)


def read(path: Path, adapter: Adapter, *, optimizer: bool) -> None:
    """Take over what `write` wrote into an adapter of the same shape; all of it or, where it does not fit, nothing.

    Raises:
        CheckpointError: files are missing or damaged, or are of another shape.
    """
    try:
        weights = {name.removeprefix(PREFIX): t for name, t in load_file(path / WEIGHTS).items()}
        _check(weights, adapter)
        state = load_file(path / OPTIMIZER) if optimizer else {}
        if optimizer:
            _check_optimizer(state, adapter)
    except (OSError, KeyError, ValueError, SafetensorError) as error:
        raise CheckpointError(
            f"The checkpoint does not fit this model ({first_line(error)}). Load one of an adapter of this base model, "
            "with the same rank and the same layers."
        ) from error
    with torch.no_grad():
        for name, tensor in adapter.trained.items():
            tensor.copy_(weights[name])
    adapter.optimizer.state.clear()
    adapter.optimizer.zero_grad(set_to_none=True)
    adapter.steps = 0
    if optimizer:
        _restore(adapter, state)


def read_weights(path: Path, bank: AdapterBank, rank: int) -> Weights:
    """The weights alone, for sampling.

    Raises:
        CheckpointError: files are missing or damaged, or do not fit the model.
    """
    try:
        tensors = {name.removeprefix(PREFIX): t for name, t in load_file(path / WEIGHTS).items()}
        names = dict.fromkeys(name.partition(".lora_")[0] for name in tensors)
        pairs = {n: tuple(tensors[f"{n}.lora_{k}.weight"].to(bank.device) for k in "AB") for n in names}
        for name, (a, b) in pairs.items():
            base = bank.layers[name][0].base
            if a.shape[0] != rank or b.shape[1] != rank or (a.shape[1], b.shape[0]) != sizes(base):
                raise ValueError(f"{name} has matrices of another size")
            if not (torch.isfinite(a).all() and torch.isfinite(b).all()):
                raise ValueError(f"{name} has weights that are not finite")
    except (OSError, KeyError, ValueError, SafetensorError) as error:
        raise CheckpointError(
            f"The checkpoint does not fit this model ({first_line(error)}). Sample from one of this base model."
        ) from error
    return Weights({n: (a, b) for n, (a, b) in pairs.items()}, rank, bank.local.lora_alpha / rank)


def _check(weights: Mapping[str, Tensor], adapter: Adapter) -> None:
    if weights.keys() != adapter.trained.keys():
        raise ValueError(f"other layers: {sorted(weights.keys() ^ adapter.trained.keys())[:3]}")
    wrong = [n for n, t in adapter.trained.items() if t.shape != weights[n].shape]
    if wrong:
        raise ValueError(f"weights of another shape: {wrong[:3]}")
    if not all(bool(torch.isfinite(t).all()) for t in weights.values()):
        raise ValueError("weights that are not finite")


def _optimizer_tensors(adapter: Adapter) -> dict[str, Tensor]:
    found = {"steps": torch.tensor(adapter.steps)}
    for name, tensor in adapter.trained.items():
        state = adapter.optimizer.state.get(tensor, {})
        for key in (*MOMENTS, "step") if state else ():
            found[f"{key}.{name}"] = state[key].detach().cpu().contiguous()
    return found


def _check_optimizer(state: Mapping[str, Tensor], adapter: Adapter) -> None:
    if "steps" not in state:
        raise KeyError("steps")
    for name, tensor in adapter.trained.items():
        for key in MOMENTS:
            if f"{key}.{name}" in state and state[f"{key}.{name}"].shape != tensor.shape:
                raise ValueError(f"an optimizer state of another shape: {name}")
    missing = [n for n in adapter.trained for k in (*MOMENTS, "step") if f"{k}.{n}" not in state]
    if missing and len(state) > 1:
        raise KeyError(missing[0])


def _restore(adapter: Adapter, state: Mapping[str, Tensor]) -> None:
    adapter.steps = int(state["steps"])
    if len(state) == 1:
        return  # saved before the first step
    for name, tensor in adapter.trained.items():
        fused = adapter.optimizer.defaults["fused"]
        adapter.optimizer.state[tensor] = {
            "step": state[f"step.{name}"].float().to(tensor.device if fused else "cpu"),
            **{key: state[f"{key}.{name}"].to(tensor.device) for key in MOMENTS},
        }
