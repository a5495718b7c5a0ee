"""The timing stage: settings that allow it, the inputs it draws, and what findings make of a verdict."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import chz
import numpy as np
import pytest

from assay.cli.tasks.grade import read_grading
from assay.errors import ConfigError, MissingDependencyError
from assay.kernels import config, devices, sandboxes
from assay.kernels.arrays import HostTensor, host_tensor
from assay.kernels.compile.toolkit import CudaToolkit
from assay.kernels.config import GraderConfig
from assay.kernels.grader import Grader
from assay.kernels.numerics.reference import ReferenceProcess
from assay.kernels.numerics.screening import Case
from assay.kernels.numerics.secret_inputs import InputSet
from assay.kernels.problems.scaling import unscaled
from assay.kernels.problems.sources import find_problem, load_problems
from assay.kernels.program.judging.outcome import Attempt
from assay.kernels.program.trial import record
from assay.kernels.sandboxes import local_sandbox
from assay.kernels.timing.config import TimingConfig
from assay.kernels.timing.stage import KINDS, Turns, stopwatch_for, timed, timed_problem, work_of
from assay.kernels.timing.statistics import ClockAgreement, Finding, FindingKind, Timing
from assay.kernels.verdict_cache import cache_key
from assay.kernels.verdicts import Verdict
from assay.sandbox.modal.config import ModalConfig
from support.kernel_graders import LIMITS, Bench
from support.sandboxes import needs_walls
from support.trials import Trials

ROOT = Path(__file__).parents[3]
HONEST = (ROOT / "exploits/honest/batched_matvec.py").read_text(encoding="utf-8")
ON_CPU = TimingConfig(
    device="cpu", samples=6, warm_ups=1, alone=2, max_calls=1, wall_s=60, memory_mb=4096, buffer_mb=64
)
PROBLEM = find_problem(load_problems("shipped", (1,), None, None), 1, 5)


@needs_walls
def test_a_grade_ends_with_the_timing(reference_process: ReferenceProcess) -> None:
    pytest.importorskip("triton")
    config = GraderConfig(measure_performance=True, timing=ON_CPU, compile_check="off", num_correct_trials=2)

    async def grade() -> Verdict:
        async with Grader(config, reference=reference_process) as grader:
            return await grader.grade(PROBLEM, HONEST)

    verdict = asyncio.run(grade())
    assert (verdict.kind, verdict.stage) == ("ok", "timing") and verdict.timing is not None, verdict
    assert verdict.timing["launched"] == "one by one"


def test_a_right_kernel_is_timed_by_its_program(bench: Bench, reference_process: ReferenceProcess) -> None:
    trials = Trials(bench)
    draw = trials.draw(PROBLEM.key)
    attempt = bench.wait(record(bench.sandbox, HONEST, draw, LIMITS, "float32"))
    assert isinstance(attempt, Attempt), attempt
    problem = timed_problem(unscaled(PROBLEM), draw, "float32", reference_process, random.Random(1).getrandbits)
    config = GraderConfig(measure_performance=True, timing=ON_CPU)

    async def run() -> tuple[Verdict, Verdict]:
        async with local_sandbox(config) as sandbox:
            stopwatch = stopwatch_for(config, sandbox)
            right = await timed(RIGHT, attempt.text, problem, stopwatch, config)
            idle = json.dumps({**json.loads(attempt.text), "forward": []})
            return right, await timed(RIGHT, idle, problem, stopwatch, config)

    verdict, idle = asyncio.run(run())
    assert (verdict.kind, verdict.stage) == ("ok", "timing") and verdict.timing is not None, verdict
    assert verdict.timing["device"] == "cpu" and verdict.timing["baseline"] == "eager"
    assert verdict.timing["launched"] == "one by one"
    assert verdict.timing["rewardable"] == verdict.timing["lower"] < 1
    assert Verdict.from_json(verdict.to_json()) == verdict
    assert (idle.kind, idle.stage) == ("wrong", "timing")


class Played:
    """A stopwatch that shows what it is told to."""

    def __init__(self, *shown: Timing | Finding | ConfigError) -> None:
        self.shown: Iterator[Any] = iter(shown)

    async def time(self, source: str, problem: object, baseline: str, form: str) -> Timing | Finding:
        assert form == "program"
        found = next(self.shown)
        if isinstance(found, ConfigError):
            raise found
        return found  # type: ignore[no-any-return]


TIMING = Timing(2.0, 1.8, 2.2, "eager", 1.0, 2.0, 24, 1, "GPU", ClockAgreement(0.1, 0.0, 0.0, False), 0.5, None)
RIGHT = Verdict("ok", "numerics", evidence={"worst": 0.1}, tests_passed=5, tests_total=5)


def after(config: GraderConfig, *shown: Timing | Finding | ConfigError) -> Verdict:
    return asyncio.run(timed(RIGHT, "", None, Played(*shown), config))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_a_finding_decides(kind: FindingKind) -> None:
    verdict = after(GraderConfig(), Finding(kind, "what was seen"))
    assert (verdict.kind, verdict.stage, verdict.timing) == (KINDS[kind], "timing", None)
    assert "what was seen" in verdict.message
    assert verdict.cheat == (kind if KINDS[kind] == "cheat" else "")
    assert verdict.evidence["worst"] == 0.1 and verdict.tests_passed == 5


def test_a_withheld_speedup_leaves_the_verdict() -> None:
    verdict = after(GraderConfig(), replace(TIMING, quarantine="below the floor"))
    assert verdict.ok and verdict.timing is not None
    assert verdict.timing["rewardable"] is None and "below the floor" in verdict.message


@pytest.mark.usefixtures("gpu")
def test_the_first_of_two_baselines_is_the_verdicts() -> None:
    both = GraderConfig(device="cuda", measure_performance=True, scale="none", baselines=("compile", "eager"))
    first = replace(TIMING, baseline="compile", speedup=1.5)
    verdict = after(both, first, TIMING)
    assert verdict.timing is not None
    assert verdict.timing["speedup"] == 1.5 and verdict.timing["others"]["eager"]["speedup"] == 2.0
    assert after(both, first, Finding("wrong", "then it was wrong")).kind == "wrong"
    assert after(both, ConfigError("too large")).kind == "unsupported"


class NewDraws:
    """A reference that counts how often it was asked."""

    def __init__(self) -> None:
        self.seeds: list[int] = []

    def evaluate(self, code: str, *, input_seed: int, **_: Any) -> Any:
        self.seeds.append(input_seed)
        return type("Result", (), {"cases": (case("given", float(len(self.seeds))),)})


def case(family: str, first: float = 0.0) -> Case:
    values = np.arange(64, dtype=np.float32) ** 1.5
    values[0] = first
    exact = (np.ones((4, 2)),)
    return Case(family, (host_tensor(values.reshape(8, 8), "float32"), 3), exact, exact)


def draw_of(*families: str) -> InputSet:
    cases = tuple(case(family) for family in families)
    work = {"mm": (1, 1000), "relu": (1, 50)}
    return InputSet(1, 2, (), cases, (("float32", (4, 2)),), (("w", (10,)),), work)


def test_each_call_has_fresh_inputs() -> None:
    bits = random.Random(3).getrandbits
    reference = NewDraws()
    problem = timed_problem(unscaled(PROBLEM), draw_of("given", "permuted"), "float32", reference, bits)  # type: ignore[arg-type]
    first, second = problem.draw(), problem.draw()
    for values in (first, second):
        tensor = values[0]
        assert isinstance(tensor, HostTensor) and values[1] == 3
        assert sorted(tensor.array().ravel()) == sorted(case("given").inputs[0].array().ravel())  # type: ignore[union-attr]
    assert first != second and not reference.seeds
    problem = timed_problem(unscaled(PROBLEM), draw_of("given", "signed"), "float32", reference, bits)  # type: ignore[arg-type]
    assert problem.draw() != problem.draw() and len(set(reference.seeds)) == 2


def test_what_a_call_cannot_do_without() -> None:
    work = work_of(draw_of("given"), "float32")
    assert (work.bytes, work.flops, work.dtype) == (4 * (64 + 10 + 8), 2000.0, "float32")


def test_one_is_timed_at_a_time_and_alone() -> None:
    log: list[str] = []

    async def use(turns: Turns, name: str) -> None:
        async with turns.alone() if name.isupper() else turns.shared():
            log.append(f"+{name}")
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            log.append(f"-{name}")

    async def main(one_device: bool) -> None:
        turns = Turns(one_device)
        await asyncio.gather(*(use(turns, name) for name in ("a", "b", "T", "c", "U")))

    asyncio.run(main(True))
    assert log[:4] == ["+a", "+b", "-a", "-b"]
    assert "".join(log).count("+T-T") == 1 and "".join(log).count("+U-U") == 1
    log.clear()
    asyncio.run(main(False))
    assert log[:5] == ["+a", "+b", "+T", "+c", "+U"]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "nvidia_devices", lambda: ("/dev/nvidia0",))


REFUSED = {
    "no GPU is timed": ({"measure_performance": True}, "device=cpu and timing.device=cuda"),
    "at sizes for tests": ({"measure_performance": True, "device": "cuda"}, "scale=none"),
    "no room for two": (
        {"measure_performance": True, "device": "cuda", "scale": "none", "workers": 1},
        "workers=2",
    ),
    "unknown baseline": (
        {"device": "cuda", "measure_performance": True, "scale": "none", "baselines": ("fast",)},
        "eager, compile, graph",
    ),
    "no baseline": ({"device": "cuda", "measure_performance": True, "scale": "none", "baselines": ()}, "one or more"),
    "sources nobody runs": ({"backend": "cuda", "run_on": "modal"}, "device=cuda"),
    "no setup": ({"setup_s": 0.0}, "setup_s=0.0 must be above 0"),
}


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(("fields", "words"), REFUSED.values(), ids=REFUSED)
def test_settings_that_cannot_be(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        GraderConfig(**fields)


def test_a_gpu_elsewhere_needs_none_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "nvidia_devices", lambda: ())
    assert GraderConfig(device="cuda", run_on="modal").device == "cuda"
    with pytest.raises(ConfigError, match="device=cuda: this machine has no device file"):
        GraderConfig(device="cuda")
    with pytest.raises(ConfigError, match="reference_device=cuda: this machine has no device file"):
        GraderConfig(device="cuda", run_on="modal", reference_device="cuda")


@pytest.mark.usefixtures("gpu")
def test_what_may_change_a_verdict_is_in_its_key() -> None:
    on_gpu = GraderConfig(device="cuda", run_on="modal", scale="none")
    timed_there = chz.replace(on_gpu, measure_performance=True)
    variants = [
        GraderConfig(),
        on_gpu,
        chz.replace(on_gpu, run_on="local"),
        chz.replace(on_gpu, modal=ModalConfig(modal_gpu_type="T4")),
        chz.replace(on_gpu, modal=ModalConfig(modal_timeout=60)),
        timed_there,
        chz.replace(timed_there, baselines=("compile",)),
        chz.replace(timed_there, timing=TimingConfig(tf32=True)),
    ]
    assert len({cache_key("p", "c", config, "1") for config in variants}) == len(variants)
    elsewhere = chz.replace(on_gpu, modal=ModalConfig(modal_retries=0))
    assert cache_key("p", "c", elsewhere, "1") == cache_key("p", "c", on_gpu, "1")
    assert cache_key("p", "c", GraderConfig(workers=3), "1") == cache_key("p", "c", GraderConfig(), "1")


def test_devices_are_read_from_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert devices.nvidia_devices(str(tmp_path)) == ()
    for name in ("nvidiactl", "nvidia-uvm", "nvidia0", "nvidia-modeset", "nvidia1"):
        (tmp_path / name).touch()
    assert devices.nvidia_devices(str(tmp_path)) == (), "plain files are no devices"
    monkeypatch.setattr(devices, "_is_device", lambda path: Path(path).exists())
    found = [Path(path).name for path in devices.nvidia_devices(str(tmp_path))]
    assert found == ["nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"]
    information = tmp_path / "0000:01:00.0" / "information"
    information.parent.mkdir()
    information.write_text("Model: \t\t NVIDIA H100 80GB HBM3\nIRQ: 1\n")
    assert devices.gpu_models(str(tmp_path)) == ("NVIDIA H100 80GB HBM3",)


def none_here() -> CudaToolkit:
    raise MissingDependencyError("CUDA sources cannot be compiled here (no nvcc): install a CUDA toolkit.")


@needs_walls
def test_a_toolkit_is_in_view_where_there_is_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)  # workers of root are nobody
    found = CudaToolkit(f"{tmp_path}/bin/nvcc", str(tmp_path), "/usr/bin/g++")
    monkeypatch.setattr(sandboxes, "find_toolkit", lambda: found)
    assert sandboxes.local_sandbox(GraderConfig(backend="cuda")).config.readable == (str(tmp_path),)
    assert sandboxes.local_sandbox(GraderConfig()).config.readable == ()
    monkeypatch.setattr(sandboxes, "find_toolkit", none_here)
    assert sandboxes.local_sandbox(GraderConfig(backend="cuda")).config.readable == ()


@pytest.mark.usefixtures("gpu")
def test_nothing_is_built_for_a_gpu_without_a_toolkit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandboxes, "find_toolkit", none_here)
    monkeypatch.setattr(sandboxes, "nvidia_devices", lambda: ())
    with pytest.raises(MissingDependencyError, match="no nvcc"):
        sandboxes.local_sandbox(GraderConfig(backend="cuda", device="cuda"))


def test_nodes_are_reached_from_the_command_line() -> None:
    given = {"device": "cuda", "measure_performance": "true", "run_on": "modal", "scale": "none"}
    given |= {"modal.modal_gpu_type": "H100", "timing.samples": "30", "baselines": "eager,compile"}
    config = read_grading(given)
    assert (config.modal.modal_gpu_type, config.timing.samples) == ("H100", 30)
    assert (config.baselines, config.run_on, config.measure_performance) == (("eager", "compile"), "modal", True)
    with pytest.raises(ConfigError, match=r"Did you mean modal\.modal_gpu_type"):
        read_grading({"modal_gpu_type": "H100"})
    with pytest.raises(ConfigError, match=r"timing.samples=many .*: expected a whole number"):
        read_grading({"timing.samples": "many"})
