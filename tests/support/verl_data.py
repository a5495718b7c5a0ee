"""Batches as verl's trainers make them, and a tokenizer of words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

from verl import DataProto

WORDS = ("[PAD]", "[UNK]", "ask", "a", "b", "c", "d", "BROKEN", *(f"w{i}" for i in range(512)))
PAD = 0
RESPONSE_LENGTH = 6
KEY_ENV, KEY = "ASSAY_TEST_KEY", "sk-assay-test-0123456789"
"""What actors find in their environment: that of the cluster."""


def word_tokenizer() -> PreTrainedTokenizerFast:
    words = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]", eos_token="[PAD]")


def make_batch(
    tokenizer: PreTrainedTokenizerFast,
    responses: Sequence[str],
    truths: Sequence[Any],
    extras: Sequence[dict[str, Any]] | None = None,
    uids: Sequence[str] | None = None,
    prompts: Sequence[Any] | None = None,
) -> DataProto:
    """A batch: prompts padded on the left, responses on the right, as many rows as responses."""
    ids = [tokenizer.encode(text, add_special_tokens=False) for text in responses]
    rows = torch.tensor([row + [PAD] * (RESPONSE_LENGTH - len(row)) for row in ids])
    mask = torch.tensor([[1] * len(row) + [0] * (RESPONSE_LENGTH - len(row)) for row in ids])
    prompt = torch.tensor([[PAD, 2, 3]] * len(ids))
    prompt_mask = torch.tensor([[0, 1, 1]] * len(ids))
    fields: dict[str, Any] = {
        "data_source": objects(["words"] * len(ids)),
        "reward_model": objects([{"ground_truth": truth, "style": "rule"} for truth in truths]),
    }
    for name, values in (("extra_info", extras), ("uid", uids), ("raw_prompt", prompts)):
        if values is not None:
            fields[name] = objects(values)
    tensors = {
        "prompts": prompt,
        "responses": rows,
        "attention_mask": torch.cat([prompt_mask, mask], dim=1),
        "input_ids": torch.cat([prompt, rows], dim=1),
    }
    return DataProto.from_dict(tensors=tensors, non_tensors=fields)


def place_and_value(rewards: torch.Tensor) -> list[tuple[list[int], list[float]]]:
    """Per row, the columns that are not 0 and what stands there."""
    return [(row.nonzero().flatten().tolist(), row[row != 0].tolist()) for row in rewards]


def objects(values: Sequence[Any]) -> np.ndarray:
    """An object array whose members are `values` as they are, lists and dictionaries included."""
    array = np.empty(len(values), dtype=object)
    array[:] = list(values)
    return array
