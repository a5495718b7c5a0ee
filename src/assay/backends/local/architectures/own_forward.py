"""Models that run through their own forward pass: how, or one sentence on why not.

What transformers computes for a sequence by itself, without padding and without a cache, is the truth here. Sampling
and training are held against it when a model is loaded, on a few short sequences of different lengths.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from assay.backends.local.architectures.context import context_length
from assay.backends.local.architectures.lively import lively
from assay.backends.local.architectures.precision import agree, difference, exact_products, in_float32
from assay.backends.local.architectures.understood import base_of
from assay.backends.local.module import Module
from assay.backends.local.sampling.steppers import ModuleStepper
from assay.errors import ModelError

logger = logging.getLogger(__name__)

_PADS_LEFT = """
    afmoe apertus arcee aria_text bailing_hybrid bamba biogpt bitnet bloom codegen cohere cohere2 cohere2_moe
    ctrl cwm dbrx deepseek_v2 deepseek_v3 deepseek_v32 diffllama doge dots1 ernie4_5 ernie4_5_moe
    exaone4 exaone_moe falcon falcon_h1 flex_olmo gemma gemma2 gemma3 gemma3_text glm glm4 glm4_moe
    glm4_moe_lite gpt2 gpt_bigcode gpt_neox gpt_neox_japanese gpt_oss gptj granite granitemoe
    granitemoehybrid granitemoeshared helium hunyuan_v1_dense hunyuan_v1_moe hyperclovax internlm3 jais2 jamba
    jetmoe lfm2 lfm2_moe llama llama4_text mamba2 mimo_v2_flash minicpm3 minimax_m2 ministral ministral3 mistral
    mixtral modernbert-decoder nanochat nemotron olmo olmo2 olmo3 olmo_hybrid olmoe opt persimmon phi phi3
    phimoe qwen2 qwen2_moe qwen3 qwen3_5_moe_text qwen3_5_text qwen3_moe qwen3_next seed_oss smollm3 solar_open
    stablelm starcoder2 vaultgemma xglm youtu zamba
"""
PADS_LEFT = frozenset(_PADS_LEFT.split())
"""Model types of which transformers ignores padding on the left of a batch, also beyond windows and chunks: those of
which `benchmarks/models.py` has shown it. Prompts of others are decoded one length after the other. So are those of
deepseek_v4, whose blocks of compressed tokens count places in the batch, and of gpt_neo and mpt, whose tables end at
the last position of the context, which padding would push the longest beyond."""

FAILURES = (RuntimeError, TypeError, ValueError, LookupError, AttributeError, AssertionError, ArithmeticError)
"""What the code of an architecture raises where it cannot do what is asked."""
CURES = {
    "on tokens alone": "Use another architecture, another version of transformers, or adapters on other modules "
    "(local.lora_targets) if it has adapters.",
    "in bfloat16": "Set local.dtype=float32.",
}
"""What may help against a failure, by what was tried."""
LENGTHS, NEW = (7, 3), 3
"""Tokens of the prompts and of the continuations of the trial."""


def own_forward(model: Any, device: torch.device, half: bool) -> Module:
    """How a causal LM (bare or wrapped by peft) runs through its own forward pass.

    Args:
        half: whether it will compute under autocast to bfloat16.

    Raises:
        ModelError: Assay cannot run it, or would give it other log-probabilities than transformers does.
    """
    name = type(base_of(model)).__name__ + (" with its adapters" if base_of(model) is not model else "")
    with exact_products(), lively(model), torch.no_grad():
        precise: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
        dtype = torch.float32
        if any(p.dtype in (torch.bfloat16, torch.float16) for p in model.parameters()):
            dtype = torch.bfloat16
            with contextlib.suppress(*FAILURES), in_float32(model):
                _ = model(input_ids=torch.tensor([[1, 2]], device=device), use_cache=False)
                precise, dtype = partial(in_float32, model), torch.float32
        with _failing(name, "on tokens alone"), precise():
            module = Module.of(model)
            trial = _Trial.of(module, dtype)
            _refuse_positions_of_padding(model)
            module = _sampled(name, trial, replace(module, pads_left=model.config.model_type in PADS_LEFT))
            module = _trained(name, trial, module)
        if half:
            with _failing(name, "in bfloat16"), torch.autocast(device.type, torch.bfloat16):
                trial.sampled(module)
                trial.trained(module, slice(0, 1))
    return module


def _sampled(name: str, trial: _Trial, module: Module) -> Module:
    """The module decoded in the fastest way that gives the right logits."""
    ways = [module, replace(module, pads_left=False)] if module.pads_left else [module]
    why = "it takes no cache of earlier tokens"
    for way in ways if module.cache else ():
        try:
            if trial.right(got := trial.sampled(way)):
                return way
            why = f"with its cache it gives other logits than without (by {trial.worst(got):.2g} of their spread)"
        except FAILURES as error:
            why = f"its cache cannot be copied to the samples of a prompt ({failure_line(error)})"
    way = replace(module, cache=None, pads_left=False)
    if not trial.right(got := trial.sampled(way)):
        _refuse(name, "side by side,", trial.worst(got))
    logger.warning(
        "%s is decoded without a cache, which is slow for long completions: %s in this version of transformers.",
        name,
        why,
    )
    return way


def _trained(name: str, trial: _Trial, module: Module) -> Module:
    """The module with one training sequence in each pass, where padding on the right changes something."""
    if trial.right(trial.trained(module, slice(None))):
        return module
    for row in range(len(trial.prompts)):
        if not trial.right(got := trial.trained(module, slice(row, row + 1)), row):
            _refuse(name, "in a training pass,", trial.worst(got, row))
    return replace(module, pads_right=False)


def _refuse(name: str, when: str, worst: float) -> None:
    raise ModelError(
        f"{name} cannot be trained: {when} it gives other logits than for a whole sequence by itself (by {worst:.2g} "
        "of their spread), so sampled and trained log-probabilities would differ. Use another architecture or another "
        "version of transformers."
    )


def _refuse_positions_of_padding(model: nn.Module) -> None:
    """Refuse the RoBERTa family: with a cache, a padding token that was sampled shifts all positions behind it."""
    for name, part in model.named_modules():
        if type(part) is nn.Embedding and part.padding_idx is not None and name.endswith("position_embeddings"):
            raise ModelError(
                f"{type(base_of(model)).__name__} counts positions from its tokens and skips the padding token "
                f"{part.padding_idx}, so a completion that has this token would get other log-probabilities in "
                "training than in sampling. Use a decoder whose positions do not depend on its tokens."
            )


def refuse_prompt_learning(model: Any) -> None:
    """Refuse virtual tokens: they have no place in shared prompts, nor in the positions that transformers counts.

    Raises:
        ModelError: peft puts such tokens before the model's prompts.
    """
    config: Any = getattr(model, "active_peft_config", None)
    if getattr(config, "is_prompt_learning", False):
        raise ModelError(
            f"peft's {config.peft_type.value} puts virtual tokens before every prompt, which Assay's sampler does not "
            "support. Use an adapter inside the layers, such as LoRA."
        )


@contextlib.contextmanager
def _failing(name: str, how: str) -> Iterator[None]:
    """Context in which the code of an architecture runs for the first time."""
    try:
        yield
    except ModelError:
        raise
    except FAILURES as error:
        raise ModelError(
            f"{name} cannot be run {how} ({failure_line(error)}), so it cannot be sampled or trained. {CURES[how]}"
        ) from error


def failure_line(error: Exception) -> str:
    """The kind of an error and the first line of its message."""
    reason = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {reason[:200]}"


@dataclass(frozen=True)
class _Trial:
    """Prompts of different lengths with two continuations each, and the logits of each sequence by itself."""

    prompts: list[Tensor]
    """Each [L]."""
    continuations: Tensor
    """[P, 2, T]."""
    want: list[Tensor]
    """Of each prompt: logits [2, L + T, V]."""
    dtype: torch.dtype
    context: int

    @classmethod
    def of(cls, module: Module, dtype: torch.dtype) -> _Trial:
        """Random tokens, run one sequence after the other, in the precision `dtype`.

        Raises:
            ModelError: logits depend on later tokens.
            ValueError: they are not finite, or not those of the tokens.
        """
        model = module.model
        weight = model.get_input_embeddings().weight
        generator = torch.Generator().manual_seed(0)
        ids = torch.tensor(_plain_tokens(model.config, len(weight)))

        def draw(*shape: int) -> Tensor:
            return ids[torch.randint(len(ids), shape, generator=generator)].to(weight.device)

        prompts, continuations = [draw(n) for n in LENGTHS], draw(len(LENGTHS), 2, NEW)
        want = []
        for prompt, pair in zip(prompts, continuations, strict=True):
            wholes = [torch.cat([prompt, continuation])[None] for continuation in pair]
            want.append(torch.cat([model(input_ids=whole, use_cache=False).logits for whole in wholes]))
            if want[-1].shape[:2] != (2, len(prompt) + NEW):
                raise ValueError(f"{len(prompt) + NEW} tokens give logits of shape {tuple(want[-1].shape[1:])}")
            if not want[-1].isfinite().all():
                raise ValueError("its logits are not finite")
            first, second = want[-1][:, : len(prompt)]
            if not agree(first, second, dtype):
                name, worst = type(base_of(model)).__name__, difference(first, second, dtype)
                raise ModelError(
                    f"{name} is not a causal language model as it is configured: the logits of a token change with the "
                    f"tokens behind it (by {worst:.2g} of their spread), so tokens cannot be sampled one by one. Use a "
                    "decoder (some architectures are one with is_decoder=True in their config)."
                )
        return cls(prompts, continuations, want, dtype, context_length(model))

    def sampled(self, module: Module) -> list[Tensor]:
        """The same logits, decoded; of each prompt [2, 1 + T, V] from its last token on."""
        lengths = torch.tensor([len(p) for p in self.prompts])
        stepper = ModuleStepper(module, module.head, self.context)
        first = stepper.prefill(_padded(self.prompts), lengths)
        stepper.branch(2)
        steps, order = [first[:, None].expand(-1, 2, -1)], torch.tensor([0, 1])
        for t in range(NEW):
            logits = stepper.step(self.continuations[:, order, t])
            steps.append(logits[:, order])
            if t == 0:
                order = torch.tensor([1, 0])
                columns = order.to(first.device).expand(len(lengths), -1)
                stepper.select(torch.arange(len(lengths), device=first.device), columns)
        return list(torch.stack(steps, 2))

    def trained(self, module: Module, chosen: slice) -> list[Tensor]:
        """The same logits, from a training pass over the first continuations of the `chosen` prompts: [1, 1 + T, V]."""
        pairs = zip(self.prompts[chosen], self.continuations[chosen], strict=True)
        wholes = [torch.cat([prompt, pair[0]]) for prompt, pair in pairs]
        tokens = _padded(wholes)
        lengths = torch.tensor([len(w) for w in wholes], device=tokens.device)
        columns = torch.arange(tokens.shape[1], device=tokens.device)
        ends = [len(w) + row * tokens.shape[1] for row, w in enumerate(wholes)]
        rows = torch.cat([torch.arange(end - NEW - 1, end, device=tokens.device) for end in ends])
        mask = (columns < lengths[:, None]).long()
        states = module.states(rows, input_ids=tokens, attention_mask=mask, use_cache=False)
        return [logits[None] for logits in torch.split(module.head(states), NEW + 1)]

    def right(self, got: list[Tensor], first: int = 0) -> bool:
        """Whether logits of the last tokens of some continuations (of prompt `first` and those behind it) agree."""
        return all(agree(a, b, self.dtype) for a, b in self._pairs(got, first))

    def worst(self, got: list[Tensor], first: int = 0) -> float:
        """Their largest difference."""
        return max(difference(a, b, self.dtype) for a, b in self._pairs(got, first))

    def _pairs(self, got: list[Tensor], first: int) -> Iterator[tuple[Tensor, Tensor]]:
        for logits, want in zip(got, self.want[first:], strict=False):
            yield logits, want[: len(logits), -NEW - 1 :]


def _padded(sequences: list[Tensor]) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True)


def _plain_tokens(config: Any, vocab_size: int) -> list[int]:
    """Token ids that the config gives no meaning, such as that of an image."""
    text = config.get_text_config(decoder=True)
    vocab_size = min(vocab_size, getattr(text, "vocab_size", vocab_size))
    named = {**vars(config), **vars(text)}
    special = {v for n, v in named.items() if n.endswith(("token_id", "token_index", "token_ids"))
               for v in (v if isinstance(v, list | tuple) else [v]) if isinstance(v, int)}  # fmt: skip
    return [token for token in range(min(vocab_size, 1000)) if token not in special] or [0]
