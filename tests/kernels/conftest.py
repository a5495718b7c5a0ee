"""What tests of kernels share."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest

from assay.kernels.numerics.reference import ReferenceProcess
from support.kernel_graders import Bench
from support.sandboxes import FEATURES


@pytest.fixture(scope="session")
def reference_process() -> Iterator[ReferenceProcess]:
    """The process for references that all tests share which need no other. It starts with the first evaluation."""
    with ReferenceProcess() as process:
        yield process


@pytest.fixture(scope="session")
def bench(reference_process: ReferenceProcess) -> Iterator[Bench]:
    """The sandbox, the references and the graders of this process."""
    if FEATURES is None or FEATURES.missing:
        pytest.skip("no walls here")
    if any(importlib.util.find_spec(name) is None for name in ("torch", "triton")):
        pytest.skip("no torch or no triton here")
    shared = Bench(reference_process)
    yield shared
    shared.close()
