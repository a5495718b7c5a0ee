"""What TRL makes of a batch: the loss and the advantages of its own trainers, whose model's output is the batch's."""

from __future__ import annotations

import functools
import logging
import math
import tempfile
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor
from transformers import AutoModelForCausalLM, GPT2Config, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

from support.conformance.assay_side import Found
from support.conformance.cases import Case

WORDS = 4
GROUP = 4


@functools.cache
def _model_and_tokenizer() -> tuple[Any, Any, tempfile.TemporaryDirectory[str]]:
    words = Tokenizer(WordLevel({str(i): i for i in range(WORDS)}, unk_token="0"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="0", eos_token="0", unk_token="0")
    config = GPT2Config(n_embd=4, n_layer=1, n_head=1, vocab_size=WORDS, n_positions=64, bos_token_id=0, eos_token_id=0)
    # On disk, since with a KL penalty TRL loads the reference by the model's path.
    folder = tempfile.TemporaryDirectory()
    AutoModelForCausalLM.from_config(config).save_pretrained(folder.name)
    return AutoModelForCausalLM.from_pretrained(folder.name), tokenizer, folder


def trainer_of(rows: int, settings: Mapping[str, Any], rloo: bool = False) -> Any:
    """A trainer of TRL's for one batch of that many completions, with these settings of its config."""
    model, tokenizer, _ = _model_and_tokenizer()
    common = {
        **{"num_generations": GROUP, "per_device_train_batch_size": rows, "beta": 0.0, "max_completion_length": 9},
        **{"use_cpu": True, "bf16": False, "report_to": [], "disable_tqdm": True, "output_dir": tempfile.gettempdir()},
        **settings,
    }
    kind, config = (RLOOTrainer, RLOOConfig) if rloo else (GRPOTrainer, GRPOConfig)
    data = Dataset.from_list([{"prompt": "1"}] * rows)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = kind(model, [_no_reward], config(**common), train_dataset=data, processing_class=tokenizer)
    # Set by `train()`, which would also make the data: one micro-batch per step.
    made.current_gradient_accumulation_steps = 1
    return made


def _no_reward(completions: list[str], **_: Any) -> list[float]:
    raise AssertionError("each call has its own")


def _put_in_place_of_the_model(trainer: Any, logprobs: Tensor, entropies: Tensor, reference: Tensor) -> None:
    def found(model: Any, *_: Any, **__: Any) -> tuple[Tensor, Tensor, None]:
        return (logprobs if model is trainer.model else reference), entropies, None

    trainer._get_per_token_logps_and_entropies = found


def loss_of(case: Case, settings: Mapping[str, Any], advantages: Tensor, rloo: bool = False) -> Found:
    """The loss of the batch by `_compute_loss`, with the given advantages [B], or RLOO's own where it has a penalty."""
    given = dict(settings)
    weights = given.pop("importance_weights", None)
    if rloo and given.get("beta"):
        advantages = advantages_of(case, given, rloo)
    trainer = trainer_of(len(advantages), given, rloo)
    now, entropies = (case[name].clone().requires_grad_() for name in ("now", "entropy"))
    _put_in_place_of_the_model(trainer, now, entropies, case["reference"])
    mask = case["mask"].long()
    completion = mask * ~case["cut"][:, None] if trainer.mask_truncated_completions else mask
    inputs = {
        "prompt_ids": torch.ones(len(mask), 1, dtype=torch.long),
        "prompt_mask": torch.ones(len(mask), 1, dtype=torch.long),
        "completion_ids": mask,
        "completion_mask": completion,
        "advantages": advantages,
        "old_per_token_logps": case["behaviour"],
        "old_logps": (case["behaviour"] * mask).sum(1),
        "ref_per_token_logps": case["reference"],
        "num_items_in_batch": completion.sum(),
    }
    if weights is not None:
        trainer.use_vllm = True
        inputs["importance_sampling_ratio"] = scored(case, {**given, **weights}, tis=True)["importance_sampling_ratio"]
    loss = trainer._compute_loss(trainer.model, inputs)
    loss.backward()
    gradients = [torch.zeros_like(x) if x.grad is None else x.grad for x in (now, entropies)]
    return Found(loss.detach(), *gradients)


def advantages_of(case: Case, settings: Mapping[str, Any], rloo: bool = False) -> Tensor:
    """[B], by `_generate_and_score_completions`."""
    found: Tensor = scored(case, settings, rloo)["advantages"].double()
    return found


def scored(case: Case, settings: Mapping[str, Any], rloo: bool = False, tis: bool = False) -> Any:
    """What TRL keeps of a batch once it is sampled and scored; with `tis`, as if vLLM had sampled it."""
    trainer = trainer_of(len(case["rewards"]), settings, rloo)
    _put_in_place_of_the_model(trainer, case["behaviour"], case["entropy"], case["reference"])
    lengths = case["mask"].sum(1).tolist()
    completions = [[1] * n for n in lengths]
    sampler = [row[:n].tolist() for row, n in zip(case["sampler"], lengths, strict=True)]
    rewards = [None if math.isnan(r) else r for r in case["rewards"].tolist()]

    def reward(**_: Any) -> list[float | None]:
        return rewards

    trainer.reward_funcs = [reward]
    trainer._generate_single_turn = lambda *_: completions if rloo else (completions, sampler if tis else None)
    trainer.use_vllm = tis
    logger = logging.getLogger("trl.trainer")
    level = logger.level
    logger.setLevel(logging.ERROR)  # it warns of unknown rewards
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return trainer._generate_and_score_completions([{"prompt": "1"}] * len(rewards))
    finally:
        logger.setLevel(level)
