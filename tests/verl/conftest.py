"""Real verl on a CPU. The ordinary test run leaves this folder out; `make test-verl` runs it in an environment of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from assay.integrations.scoring import close_all
from verl import DataProto
from verl_data import make_batch, word_tokenizer


@pytest.fixture(autouse=True)
def engines_end() -> Iterator[None]:
    yield
    close_all()


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return word_tokenizer()


@pytest.fixture(scope="session")
def tokenizer_folder(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def batch(tokenizer: Any) -> Callable[..., DataProto]:
    return partial(make_batch, tokenizer)
