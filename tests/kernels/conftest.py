"""What tests of kernels share."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest

from support.kernel_graders import Bench
from support.sandboxes import FEATURES


@pytest.fixture(scope="session")
def bench() -> Iterator[Bench]:
    """The sandbox, the references and the graders of this process."""
    if FEATURES is None or FEATURES.missing:
        pytest.skip("no walls here")
    if any(importlib.util.find_spec(name) is None for name in ("torch", "triton")):
        pytest.skip("no torch or no triton here")
    shared = Bench()
    yield shared
    shared.close()
