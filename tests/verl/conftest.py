"""Real verl on a CPU. The ordinary test run leaves this folder out; `make test-verl` runs it in its own environment."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from assay.integrations.common.scoring import close_all
from support.verl_data import KEY, KEY_ENV, make_batch, word_tokenizer
from verl import DataProto


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


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """One small Ray cluster for all tests: starting one takes seconds."""
    import ray

    tests = Path(__file__).parents[1]
    paths = os.pathsep.join([str(tests), *filter(None, [os.environ.get("PYTHONPATH")])])
    # Signs of life and usage reports have no place in a test; workers find the rewards of this folder's neighbours.
    # Ray's workers run at the lowest priorities, where a busy machine leaves them no time.
    environment = {
        "PYTHONPATH": paths,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",
        "OMP_NUM_THREADS": "1",
        KEY_ENV: KEY,
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False, configure_logging=False)
        try:
            yield
        finally:
            ray.shutdown()
