"""What the reference of a problem computes: inputs of several families, outputs in float64 and working precision.

    with ReferenceProcess() as process:
        result = process.evaluate(problem.code, input_seed=secret, weight_seed=0)
        if screening_of(result).rewarded: ...

PyTorch runs in a process of its own, with a memory limit and a deadline for each evaluation; this module, and whoever
holds seeds and expected outputs, does without. Problems are trusted code (they come from the user); candidates never
run here. Weights come from `weight_seed` in the way KernelBench builds them: the generator is seeded, then the model is
constructed, in training mode, so a candidate that creates its parameters in the same order has the same ones.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Self

from assay.envs.kernelbench.arrays import HostTensor, Value
from assay.envs.kernelbench.families import FAMILIES, Family
from assay.envs.kernelbench.problems import Problem
from assay.envs.kernelbench.scaling import LOWER, Rule, ScaledProblem, ladder
from assay.envs.kernelbench.screening import Case, Screening, screen
from assay.envs.kernelbench.wire import Frame, read_frame
from assay.errors import MissingDependencyError, ReferenceModelError

Precision = Literal["float32", "float16", "bfloat16"]
Perturbation = Literal["none", "all", "constant"]

START_TIMEOUT_S = 180.0
MAX_DEGENERATE = 2
"""Sizes of each rule at which a problem may prove degenerate before it is taken for degenerate at any."""
MAX_OUTPUT = 1 << 18
"""Elements of an output (a million bytes of float32) above which Triton's interpreter is too slow for a grade."""

_WORKER = "assay.envs.kernelbench.inside.reference_worker"
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class ReferenceResult:
    """What one evaluation gave. `cases` has `given` first; families that would change nothing are left out."""

    cases: tuple[Case, ...]
    outputs: tuple[tuple[str, tuple[int, ...]], ...]
    """Dtype and shape of each output, as the candidate has to give it."""
    parameters: int
    """How many numbers the model has as weights."""
    weights: tuple[tuple[str, tuple[int, ...]], ...]
    """Name and shape of each parameter, in the model's order."""
    precision: Precision
    exact_dtype: str
    """`float64`, or the working precision where the model cannot be run in float64."""
    init_inputs: Value = None
    """What `get_init_inputs` returned."""
    state: Mapping[str, HostTensor] = field(default_factory=dict)
    """The model's weights and buffers by name, where they were asked for."""
    work: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Calls and work of each PyTorch operator in one forward pass (see `inside.work` and `operators`)."""
    other_weights: Case | None = None
    again: Case | None = None
    seconds: float = 0.0


class ReferenceProcess:
    """One process that evaluates references, one at a time; usable from several threads, which then wait in line."""

    def __init__(
        self,
        timeout_s: float = 60.0,
        memory_mb: int = 4096,
        python: str = sys.executable,
        device: str = "cpu",
    ) -> None:
        """Nothing is started before the first evaluation.

        Args:
            timeout_s: Wall-clock limit of one evaluation; past it the process is killed and started anew.
            memory_mb: Address space of one evaluation beyond what PyTorch has taken already (RLIMIT_AS).
            python: An interpreter that has PyTorch and Assay.
            device: PyTorch's name of the device that references run on.
        """
        self.timeout_s, self.memory_mb, self.python, self.device = timeout_s, memory_mb, python, device
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def evaluate(
        self,
        code: str,
        *,
        input_seed: int,
        weight_seed: int,
        families: Sequence[Family] = FAMILIES,
        precision: Precision = "float32",
        for_screening: bool = False,
        perturb_weights: Perturbation = "none",
        with_state: bool = False,
        max_output: int | None = None,
    ) -> ReferenceResult:
        """Run a problem's module.

        Args:
            code: The module's text, as published or scaled.
            input_seed: Seed of the inputs; family number i draws from `input_seed + i`. Keep it from the candidate.
            weight_seed: Seed under which the model is constructed.
            families: Families of inputs, `given` first.
            precision: Working precision: inputs and weights are rounded to it, float64 starts from those.
            for_screening: Whether to evaluate also with other weights, and the first case once more.
            perturb_weights: Which weights to move at random: `none`, `all`, or `constant`, those whose elements are all
                equal (ones and zeros, which a kernel might leave out). A candidate has to be given them by name.
            with_state: Whether to hand back weights and buffers.
            max_output: Give up (`too_large`) when the outputs of one call have more elements than this together.

        Raises:
            ReferenceModelError: the module fails, takes too long or too much memory; `kind` says which.
            MissingDependencyError: the interpreter has no PyTorch.
        """
        request = {
            "code": code,
            "input_seed": input_seed,
            "weight_seed": weight_seed,
            "families": list(families),
            "precision": precision,
            "screen": for_screening,
            "perturb": perturb_weights,
            "state": with_state,
            "max_output": max_output,
            "memory_mb": self.memory_mb,
            "device": self.device,
        }
        with self._lock:
            begin = time.monotonic()
            frame = self._exchange(json.dumps(request).encode() + b"\n")
            return _result(frame, precision, time.monotonic() - begin)

    def close(self) -> None:
        """End the process. A later evaluation starts another."""
        with self._lock:
            self._kill()

    def _exchange(self, request: bytes) -> Frame:
        process = self._process or self._start()
        deadline = time.monotonic() + self.timeout_s
        assert process.stdin is not None and process.stdout is not None, "both ends are pipes"
        try:
            process.stdin.write(request)
            process.stdin.flush()
            size = int.from_bytes(self._read(process, 8, deadline), "little")
            data = self._read(process, size, deadline)
        except (TimeoutError, EOFError, BrokenPipeError) as error:
            self._kill()
            if isinstance(error, TimeoutError):
                raise ReferenceModelError("timeout", f"the reference took more than {self.timeout_s:g} s.") from error
            raise ReferenceModelError("crash", "the process that runs references died. Try again.") from error
        frame = read_frame(data)
        if "error" in frame.header:
            raise ReferenceModelError(frame.header["error"], f"the reference failed: {frame.header['message']}")
        return frame

    def _start(self) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        process = subprocess.Popen(
            [self.python, "-m", _WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        self._process = process
        assert process.stderr is not None, "standard error is a pipe"
        try:
            self._read(process, len(b"ready\n"), time.monotonic() + START_TIMEOUT_S)
        except (TimeoutError, EOFError) as error:
            self._kill()
            text = process.stderr.read().decode(errors="replace").strip().rpartition("\n")[2]
            if "No module named 'torch'" in text:
                raise MissingDependencyError(
                    f"references run on PyTorch, which {self.python} does not have: pip install 'assay-rl[torch]'."
                ) from error
            raise ReferenceModelError("crash", f"the process that runs references did not start: {text}") from error
        threading.Thread(target=_drain(process), daemon=True).start()
        return process

    @staticmethod
    def _read(process: subprocess.Popen[bytes], size: int, deadline: float) -> bytes:
        assert process.stdout is not None, "standard output is a pipe"
        descriptor = process.stdout.fileno()
        parts = []
        while size:
            ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError
            part = os.read(descriptor, min(size, _CHUNK))
            if not part:
                raise EOFError
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


def _drain(process: subprocess.Popen[bytes]) -> Callable[[], None]:
    """Warnings of PyTorch and of problems are dropped, so that the pipe never fills."""

    def read() -> None:
        if process.stderr is not None:
            with process.stderr as pipe:
                while pipe.read(_CHUNK):
                    continue

    return read


def _result(frame: Frame, precision: Precision, seconds: float) -> ReferenceResult:
    header = frame.header
    cases: dict[str, Case] = {}
    outputs: tuple[tuple[str, tuple[int, ...]], ...] = ()
    for entry in header["cases"]:
        rounded = [frame.tensor(tensor) for tensor in entry["rounded"]]
        exact = tuple(frame.tensor(tensor).array() for tensor in entry["exact"])
        outputs = outputs or tuple((tensor.dtype, tensor.shape) for tensor in rounded)
        inputs = tuple(frame.value(value) for value in entry["inputs"])
        cases[entry["family"]] = Case(entry["family"], inputs, exact, tuple(tensor.array() for tensor in rounded))
    other_weights, again = cases.pop("other_weights", None), cases.pop("again", None)
    return ReferenceResult(
        cases=tuple(cases.values()),
        outputs=outputs,
        parameters=header["parameters"],
        weights=tuple((name, tuple(shape)) for name, shape in header["weights"]),
        precision=precision,
        exact_dtype=header["exact"],
        init_inputs=frame.value(header["init_inputs"]),
        state={name: frame.tensor(tensor) for name, tensor in header.get("state", {}).items()},
        work={name: (calls, work) for name, (calls, work) in header.get("work", {}).items()},
        other_weights=other_weights,
        again=again,
        seconds=seconds,
    )


def screening_of(result: ReferenceResult) -> Screening:
    """Whether the problem behind an evaluation (made with `for_screening`) is worth a reward."""
    return screen(result.cases, result.other_weights, result.again, result.precision)


@dataclass(frozen=True, slots=True)
class FittedProblem:
    """A problem at sizes at which its reference runs here, with what screening says of it at those sizes."""

    scaled: ScaledProblem
    result: ReferenceResult
    screening: Screening


def fit_problem(
    problem: Problem,
    process: ReferenceProcess,
    *,
    input_seed: int = 0,
    weight_seed: int = 0,
    precision: Precision = "float32",
    max_output: int = MAX_OUTPUT,
) -> FittedProblem:
    """The smallest sizes of the ladder at which the reference runs and the problem is worth a reward.

    Where it runs but is degenerate at `MAX_DEGENERATE` sizes of each rule, the smallest of them is returned, with the
    reason. A size that takes too long, too much memory or gives too large an output ends its rule, unless that lowers
    the caps.

    Raises:
        ReferenceModelError: the reference runs at no size; the first failure.
    """
    failure: ReferenceModelError | None = None
    degenerate: list[FittedProblem] = []
    spent: dict[tuple[Rule, bool], int] = {}
    for scaled in ladder(problem):
        rung = (scaled.scaling.rule, 0 < scaled.scaling.cap <= max(LOWER))
        if spent.get(rung, 0) >= MAX_DEGENERATE or (rung[1] and degenerate):
            continue
        try:
            result = process.evaluate(
                scaled.code,
                input_seed=input_seed,
                weight_seed=weight_seed,
                precision=precision,
                for_screening=True,
                max_output=max_output,
            )
        except ReferenceModelError as error:
            failure = failure or error
            if error.kind in ("timeout", "memory", "too_large") and not rung[1]:
                spent[rung] = MAX_DEGENERATE
            continue
        fitted = FittedProblem(scaled, result, screening_of(result))
        if fitted.screening.rewarded:
            return fitted
        degenerate.append(fitted)
        spent[rung] = spent.get(rung, 0) + 1
    if degenerate:
        return degenerate[0]
    assert failure is not None, "a ladder has at least one step, which either ran or failed"
    raise failure
