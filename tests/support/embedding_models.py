"""Small sentence-transformers models in folders: weights from chance or from words, so that nothing is downloaded."""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np

PIECE = r"[A-Z]+(?![a-z])\d*|[A-Z]?[a-z]+\d*|[@+*/-]"
"""Parts of identifiers, and operators."""


def _tokenizer(vocabulary: Iterable[str]):
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    words = {word: place for place, word in enumerate(["[UNK]", "[PAD]", *vocabulary])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(PIECE), behavior="removed", invert=True)
    return tokenizer


def write_word_model(folder: Path, texts: Iterable[str], dimensions: int = 256) -> Path:
    """A model that adds up a vector for each word of a text: a random direction, equal for `ReLU` and `relu`, and the
    longer the rarer the word is among `texts`."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    known: Counter[str] = Counter()
    spellings: set[str] = set()
    count = 0
    for text in texts:
        found = set(re.findall(PIECE, text))
        spellings |= found
        known.update({piece.lower() for piece in found})
        count += 1
    vocabulary = sorted(spellings)
    weights = np.zeros((len(vocabulary) + 2, dimensions), np.float32)
    for place, word in enumerate(vocabulary, 2):
        lower = word.lower()
        seed = int.from_bytes(hashlib.sha256(lower.encode()).digest()[:8])
        rarity = math.log((count + 1) / (known[lower] + 0.5))
        weights[place] = np.random.default_rng(seed).standard_normal(dimensions) * rarity
    static = StaticEmbedding(_tokenizer(vocabulary), embedding_weights=weights)
    SentenceTransformer(modules=[static], device="cpu").save_pretrained(str(folder))
    return folder


def write_random_transformer(folder: Path, texts: Iterable[str], width: int = 32, seed: int = 0) -> Path:
    """A transformer of one layer with weights from chance, mean pooling and a vocabulary from `texts`."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    vocabulary = sorted({piece for text in texts for piece in re.findall(PIECE, text)})
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=_tokenizer(vocabulary), unk_token="[UNK]", pad_token="[PAD]", model_max_length=512
    )
    config = BertConfig(
        vocab_size=len(vocabulary) + 2,
        hidden_size=width,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=2 * width,
        max_position_embeddings=512,
        pad_token_id=1,
    )
    torch.manual_seed(seed)
    inner = folder.with_name(folder.name + "-inner")
    BertModel(config).save_pretrained(inner)
    tokenizer.save_pretrained(inner)
    transformer = Transformer(str(inner))
    pooling = Pooling(width, pooling_mode="mean")
    SentenceTransformer(modules=[transformer, pooling], device="cpu").save_pretrained(str(folder))
    return folder
