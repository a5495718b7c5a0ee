"""Backends over tiny models, as fixtures."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from assay.backends.config import LocalBackend, ScratchModel
from assay.backends.local.backend import TorchBackend
from assay.envs.base import TokenizerCorpus
from support.tiny_models import CONTEXT, tiny_model


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def corpus() -> TokenizerCorpus:
    return TokenizerCorpus(["ab abc 12 123", "cab 321"] * 4, r"[a-c]+|[0-9]+", "abc123 ")


@pytest.fixture
def make_backend(corpus: TokenizerCorpus) -> Callable[..., TorchBackend]:
    """A backend over a tiny model of a given architecture; keyword arguments go to `LocalBackend`."""
    from assay.backends.local.models import train_tokenizer

    def make(name: str = "gpt2", **local: object) -> TorchBackend:
        return TorchBackend(tiny_model(name), train_tokenizer(corpus, 40), LocalBackend(**local))  # type: ignore[arg-type]

    return make


@pytest.fixture
def scratch_backend(corpus: TokenizerCorpus) -> Callable[..., TorchBackend]:
    """A from-scratch backend with its own tokenizer."""

    def make(seed: int = 0, **local: object) -> TorchBackend:
        shape = ScratchModel(hidden_size=32, num_layers=2, context_length=CONTEXT)
        return TorchBackend.create("scratch", 0, LocalBackend(**local), shape, corpus, seed)  # type: ignore[arg-type]

    return make
