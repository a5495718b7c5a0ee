"""Grading at Modal without Modal: the grader's jobs through payloads, to what a container does with them, run here."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from pathlib import Path

import chz
import pytest

from assay.config.checks import SettingsError
from assay.errors import SandboxError
from assay.kernels.config import GraderConfig
from assay.kernels.grader import Grader
from assay.kernels.numerics.reference import ReferenceProcess
from assay.kernels.problems.sources import find_problem, load_problems
from assay.kernels.timing.config import TimingConfig
from assay.kernels.verdicts import Verdict
from assay.sandbox.local import LocalConfig
from assay.sandbox.modal import container
from assay.sandbox.modal.config import BatchLost, Lost, ModalConfig
from assay.sandbox.modal.container import Contained
from assay.sandbox.modal.sandbox import ModalSandbox
from support.sandboxes import FEATURES

pytest.importorskip("triton")

ROOT = Path(__file__).parents[2]
HONEST = (ROOT / "exploits/honest/batched_matvec.py").read_text(encoding="utf-8")
PROBLEM = find_problem(load_problems("shipped", (1,), None, None), 1, 5)
CONFIG = GraderConfig(run_on="modal", compile_check="off", num_correct_trials=2)
ON_CPU = TimingConfig(
    device="cpu", samples=6, warm_ups=1, alone=2, max_calls=1, wall_s=60, memory_mb=4096, buffer_mb=64
)


class Containers:
    """What the deployed class does with each payload, with the variables that its image would set."""

    def __init__(self) -> None:
        self.harnesses: list[str] = []

    async def answers(self, harness: str, payloads: Sequence[bytes]) -> AsyncGenerator[object, None]:
        for payload in payloads:
            self.harnesses.append(harness.rpartition(".")[2])
            yield await asyncio.to_thread(self.contained, harness, payload)

    def contained(self, harness: str, payload: bytes) -> bytes:
        inside = Contained(harness, "auto", FEATURES)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # no walls, where this machine has none
                inside.start()
            return inside.answer(payload)
        finally:
            inside.close()

    async def close(self) -> None:
        """Nothing to give back."""


class Failing(Containers):
    """Answers everything with what became of it."""

    def __init__(self, lost: Lost) -> None:
        super().__init__()
        self.lost = lost

    async def answers(self, harness: str, payloads: Sequence[bytes]) -> AsyncGenerator[object, None]:
        if self.lost.kind == "refused":
            raise BatchLost(self.lost)
        for _ in payloads:
            yield self.lost


Grade = Callable[..., Verdict]


@pytest.fixture
def graded(reference_process: ReferenceProcess) -> Grade:
    def grade(code: str, containers: Containers, config: GraderConfig = CONFIG) -> Verdict:
        async def main() -> Verdict:
            modal = ModalSandbox(ModalConfig(modal_batch_window=0.0, modal_retries=0), containers)
            async with (
                modal as sandbox,
                Grader(config, sandbox=sandbox, reference=reference_process, text_checks=False) as grader,
            ):
                return await grader.grade(PROBLEM, code)

        return asyncio.run(main())

    return grade


def test_a_wrong_kernel_is_found_out_through_payloads(graded: Grade) -> None:
    containers = Containers()
    wrong = graded(HONEST.replace("tl.sum(a * x", "tl.sum(a + x"), containers)
    assert wrong.kind == "wrong" and containers.harnesses == ["numerics"]


def test_a_right_kernel_is_timed_beside_its_baseline_in_one_container(
    graded: Grade, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without a GPU Triton has nothing but its interpreter to run on, in the timed job too.
    interpreted = partial(LocalConfig, environment={"TRITON_INTERPRET": "1"})
    monkeypatch.setattr(container, "LocalConfig", interpreted)
    config = chz.replace(CONFIG, measure_performance=True, timing=ON_CPU)
    containers = Containers()
    verdict = graded(HONEST, containers, config)
    assert containers.harnesses == ["numerics", "timed", "timed"], "the look at the baseline alone, then both together"
    assert (verdict.kind, verdict.stage) == ("ok", "timing"), verdict
    assert (verdict.tests_passed, verdict.tests_total) == (2, 2)
    assert verdict.evidence["launches"] == {"matvec_kernel": 1}
    assert verdict.timing is not None and 0 < verdict.timing["lower"] <= verdict.timing["upper"]


@pytest.mark.parametrize(("lost", "kind"), [("timeout", "timeout"), ("infra", "infra_error")])
def test_what_became_of_a_container_is_in_the_verdict(graded: Grade, lost: str, kind: str) -> None:
    gpu = GraderConfig(run_on="modal", device="cuda", num_correct_trials=1)
    for config in (CONFIG, gpu):
        verdict = graded(HONEST, Failing(Lost(lost, "it was lost")), config)  # type: ignore[arg-type]
        assert verdict.kind == kind, verdict
    assert "it was lost" in verdict.message


def test_modal_that_refuses_everything_is_no_verdict(graded: Grade) -> None:
    with pytest.raises(SandboxError, match="no credentials"):
        graded(HONEST, Failing(Lost("refused", "no credentials")))


@pytest.mark.skipif(bool(list(Path("/dev").glob("nvidia[0-9]*"))), reason="there is a GPU here")
def test_a_container_without_its_gpu_is_a_failure_of_the_grader(graded: Grade) -> None:
    gpu = GraderConfig(run_on="modal", device="cuda", num_correct_trials=1)
    verdict = graded(HONEST, Containers(), gpu)
    assert verdict.kind == "infra_error" and "CUDA did not start" in verdict.message


def test_references_beside_modal_may_run_without_walls() -> None:
    """They run on this machine, which may have none to give, wherever candidates do."""
    assert GraderConfig(run_on="modal", sandbox="unsafe").sandbox == "unsafe"
    with pytest.raises(SettingsError, match="it is read only when run_on is local"):
        GraderConfig(run_on="modal", workers=3)
