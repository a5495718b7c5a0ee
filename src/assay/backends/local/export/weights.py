"""The policy of a checkpoint as a Hugging Face folder: the whole model, or its LoRA adapters alone.

Adapters are merged in float32 and only then rounded to the model's own precision. Before anything is written, the
results of the merged weights are compared with those of the adapters.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

from assay.backends.local.models import library_is_quiet, load_config, source_of
from assay.errors import MissingDependencyError, ModelError, first_line, pip_install

Precision = Literal["float32", "bfloat16", "float16"]
ADAPTER = "adapter_config.json"
_DTYPES: Mapping[Precision, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
_MOST_DIFFERENCE = 1e-3
"""Largest difference of merged and unmerged logits, in units of the largest logit, that rounding explains."""


def load_tokenizer(model: Path) -> Any:
    """The tokenizer that a checkpoint's model folder holds.

    Raises:
        ModelError: it has no tokenizer.
    """
    try:
        return AutoTokenizer.from_pretrained(str(model))
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"{model} has no tokenizer that can be read ({first_line(error)}).") from error


def write_model(
    model: Path,
    base: str | None,
    trained_in: Precision,
    saved_in: Precision | None,
    tokenizer: PreTrainedTokenizerBase,
    generation: Mapping[str, object],
    target: Path,
) -> None:
    """Write a whole model: config, weights as safetensors, tokenizer with its chat template, generation config.

    Args:
        model: the model folder of a checkpoint.
        base: model name of what its adapters were trained over; None where it holds all weights.
        trained_in: precision that the base had in training.
        saved_in: precision of the weights that are written; None means that of the base, or of the checkpoint.
        generation: fields of the generation config.

    Raises:
        ModelError: the model cannot be loaded, or adapters cannot be merged without changing what it computes.
        MissingDependencyError: adapters, and peft is not installed.
    """
    try:
        if base is None:
            whole: Any = AutoModelForCausalLM.from_pretrained(str(model), dtype=torch.float32)
            own: torch.dtype = torch.float32
        else:
            own = _published_dtype(base)
            below: Any = AutoModelForCausalLM.from_pretrained(source_of(base), dtype=_DTYPES[trained_in])
            whole = _merged(below.float(), model)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise ModelError(f"The model {base or model} cannot be loaded ({first_line(error)}).") from error
    whole = whole.to(own if saved_in is None else _DTYPES[saved_in])
    whole.generation_config = GenerationConfig(**generation)  # type: ignore[no-untyped-call]
    whole.save_pretrained(target)
    tokenizer.save_pretrained(target)


def write_adapter(model: Path, tokenizer: PreTrainedTokenizerBase, target: Path) -> None:
    """Write the LoRA adapters of a checkpoint as peft does, with the tokenizer."""
    target.mkdir(parents=True, exist_ok=True)
    for name in (ADAPTER, "adapter_model.safetensors"):
        shutil.copyfile(model / name, target / name)
    tokenizer.save_pretrained(target)


def adapter_base(model: Path) -> str | None:
    """The model that the adapters of a folder are for; None where it holds no adapters."""
    path = model / ADAPTER
    return str(json.loads(path.read_text())["base_model_name_or_path"]) if path.is_file() else None


def _published_dtype(name: str) -> torch.dtype:
    found = getattr(load_config(name), "dtype", None)
    return found if isinstance(found, torch.dtype) else torch.float32


def _merged(base: Any, adapters: Path) -> Any:
    """`base` (float32) with the adapters of a folder merged into its weights.

    Raises:
        ModelError: the merged model gives other results.
    """
    try:
        from peft import PeftModel
    except ImportError as error:
        raise MissingDependencyError(f"Merging adapters needs peft: {pip_install('torch')}.") from error
    with library_is_quiet():
        wrapped = PeftModel.from_pretrained(base, str(adapters)).eval()
    tokens = _some_tokens(base.config.vocab_size)
    before = _logits(wrapped, tokens)
    merged = wrapped.merge_and_unload()
    after = _logits(merged, tokens)
    difference = float((after - before).abs().max() / before.abs().max().clamp_min(1e-6))
    if not difference <= _MOST_DIFFERENCE:
        raise ModelError(
            f"The merged model's logits differ from those of the adapters by {difference:.2g} of the largest: it is "
            "another policy, so nothing was written. (If local.lora_targets name tied weights, such as an output "
            "head, they cannot be merged.) Export without --merge: the adapters alone are exact."
        )
    return merged


def _some_tokens(vocabulary: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(vocabulary, (2, 8), generator=generator)


@torch.no_grad()
def _logits(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    logits: torch.Tensor = model(tokens).logits
    return logits


def generation_fields(
    tokenizer: PreTrainedTokenizerBase, stop: Sequence[int], temperature: float, max_tokens: int
) -> dict[str, object]:
    """A generation config that samples as rollouts were sampled: from the whole distribution."""
    return {
        "do_sample": True,
        "temperature": temperature,
        "top_k": 0,
        "top_p": 1.0,
        "max_new_tokens": max_tokens,
        "eos_token_id": list(stop),
        "pad_token_id": stop[0] if tokenizer.pad_token_id is None else tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
    }
