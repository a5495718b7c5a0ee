"""What the reference of a problem computes: inputs of several families, outputs in float64 and working precision.

    with ReferenceProcess() as process:
        result = process.evaluate(problem.code, input_seed=secret, weight_seed=0)
        if screening_of(result).rewarded: ...

PyTorch runs in a process of its own, with a memory limit and a deadline for each evaluation; this module, and any code
that holds seeds and expected outputs, does without. Problems are somebody else's code (a data set's, a file's), so they
run behind the walls of the sandbox, and what they answer is checked; candidates never run here. Weights come from
`weight_seed` in the way KernelBench builds them: the generator is seeded, then the model is constructed, in training
mode, so a candidate that creates its parameters in the same order has the same ones.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal, Self, TypeVar

from assay.errors import ReferenceModelError
from assay.kernels.arrays import HostTensor, Value
from assay.kernels.base import Manner, Precision
from assay.kernels.frames import Frame
from assay.kernels.numerics.conversation import Conversation
from assay.kernels.numerics.families import FAMILIES, Family
from assay.kernels.numerics.held_inputs import left_of, own_of
from assay.kernels.numerics.reference_launch import Walls
from assay.kernels.numerics.screening import Case, Screening, screen
from assay.kernels.numerics.shapes import Shapes, counted, shapes_of_answer, work_of
from assay.kernels.operators import Draw
from assay.kernels.problems.scaling import LOWER, Rule, ScaledProblem, ladder
from assay.kernels.problems.sources import Problem, find_fault
from assay.terminal import inert, shown
from assay.types import Json

T = TypeVar("T")
Perturbation = Literal["none", "all", "far"]

QUICK_S = 5.0
"""Seconds that an evaluation may take before it is moved to the process for what takes long: others wait meanwhile."""
SHAPES_TIMEOUT_S = 15.0
"""Wall-clock limit of finding shapes."""
MOST_SLOW = 1024
"""Problems that are known to take long."""
MOST_WAITING = 64
"""Threads that wait for an evaluation."""
MAX_TIMEOUTS = 2
"""Sizes at which a problem may take too long before it is taken to do so at any."""
MAX_DEGENERATE = 2
"""Sizes of each rule at which a problem may prove degenerate before it is taken for degenerate at any."""
MAX_OUTPUT = 1 << 18
"""Elements of an output (a million bytes of float32) above which Triton's interpreter is too slow for a grade."""

HEADER_BYTES = 1 << 20
"""What an answer may have beyond the memory that its problem may take."""
MESSAGE_CHARS = 3000
KINDS = ("error", "memory", "timeout", "crash", "ended", "too_large")
_PASSING = ("timeout", "memory")


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
    needed: tuple[str, ...] = ()
    """Names of those whose start may give something away that training does not keep (`inside.problem.starts`), buffers
    only where the outputs depend on them. Not looked for in screening, nor where weights are moved."""
    carries: bool = False
    """Whether outputs depend on what earlier calls left in the model. Looked for in screening alone."""
    init_inputs: Value = None
    """What `get_init_inputs` returned."""
    state: Mapping[str, HostTensor] = field(default_factory=dict)
    """The model's weights and buffers by name, where they were asked for."""
    initial: tuple[str, ...] = ()
    """A digest of each parameter (`inside.tensors.digest`)."""
    fixed: tuple[str, ...] = ()
    """Names of the buffers of its state, and of the parameters that ask for no gradient."""
    structure: Json = None
    """How the tensors lie in its output (`inside.tensors.structure_of`)."""
    meeting: frozenset[tuple[int, int]] = frozenset()
    """The pairs of tensors in its output that lie in the same memory (`arrays.meetings`)."""
    work: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Calls and work of each PyTorch operator in one forward pass (see `inside.work` and `operators`)."""
    init_work: int = 0
    """Arithmetic that its constructor does on what it draws (see `inside.construction`)."""
    draws: tuple[Draw, ...] = ()
    """The distributions that its constructor draws from."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Families whose inputs the problem takes for illegal, and the error that it raised."""
    other_weights: Case | None = None
    again: Case | None = None
    seconds: float = 0.0
    peak_mb: float = 0.0
    """Memory that the evaluation held at most beyond what PyTorch had before (resident, in MiB)."""


class ReferenceProcess:
    """Evaluates references one at a time; usable from several threads, which then wait in line.

    There is a second process for what takes long, so that a problem that never ends holds up no other one.
    """

    def __init__(
        self,
        timeout_s: float = 60.0,
        memory_mb: int = 4096,
        python: str = sys.executable,
        device: str = "cpu",
        walls: Walls = "strict",
        quick_s: float = QUICK_S,
    ) -> None:
        """Nothing is started before the first evaluation.

        Args:
            timeout_s: Wall-clock limit of one evaluation; past it the fork that runs it is killed.
            memory_mb: Address space of one evaluation beyond what PyTorch has taken already (RLIMIT_AS).
            python: An interpreter that has PyTorch and Assay.
            device: PyTorch's name of the device that references run on.
            walls: `unsafe` runs problems without walls, where a machine cannot give any.
            quick_s: Seconds after which an evaluation is moved to the second process.
        """
        self.timeout_s, self.memory_mb, self.python, self.device = timeout_s, memory_mb, python, device
        self.quick_s = quick_s
        self._quick, self._patient = (Conversation(python, device, walls) for _ in range(2))
        self._slow: dict[str, None] = {}  # problems that took long, the last ones of them
        self._threads = ThreadPoolExecutor(MOST_WAITING, thread_name_prefix="assay-reference")

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
        only: Sequence[str] = (),
        manners: Mapping[str, Manner] | None = None,
        with_state: bool = False,
        max_output: int | None = None,
        number_seed: int | None = None,
        owner: str = "",
    ) -> ReferenceResult:
        """Run a problem's module.

        Args:
            code: The module's text, as published or scaled.
            input_seed: Seed of the inputs; family number i draws from `input_seed + i`. Keep it from the candidate.
            weight_seed: Seed under which the model is constructed.
            families: Families of inputs, `given` first.
            precision: Working precision: inputs and weights are rounded to it, float64 starts from those.
            for_screening: Whether to evaluate also with other weights, and the first case once more.
            perturb_weights: Whether to move weights at random: `none`, `all`, or `far`, which moves them further. A
                candidate has to be given them by name.
            only: The parameters and constant buffers that are moved; empty for all parameters.
            manners: How those are moved of which the reference takes no others (`weights.move_in_manner`).
            with_state: Whether to hand back weights and buffers.
            max_output: Give up (`too_large`) when the outputs of one call have more elements than this together.
            number_seed: Seed of the draw that arguments come from which are no tensors; by default `input_seed`.
            owner: The problem's hash, whatever sizes `code` has; by default the text itself.

        Raises:
            ReferenceModelError: the module fails, ends its process, takes too long or too much memory; `kind` says
                which. After `close` it is always `crash`.
            MissingDependencyError: the interpreter has no PyTorch.
            SandboxError: this machine cannot wall problems in.
        """
        request = {
            "code": code,
            "input_seed": input_seed,
            "weight_seed": weight_seed,
            "families": list(families),
            "precision": precision,
            "screen": for_screening,
            "perturb": perturb_weights,
            "only": list(only),
            "manners": dict(manners or {}),
            "state": with_state,
            "max_output": max_output,
            "number_seed": input_seed if number_seed is None else number_seed,
        }
        return self._answer(request, owner or code, lambda frame, seconds: _result(frame, precision, seconds))

    def shapes(self, code: str, precision: Precision = "float32", owner: str = "") -> Shapes:
        """What a problem gives to a submission and how much work it is, found without any values: sizes do not matter.

        Raises:
            ReferenceModelError: as above; also where the problem does not run on tensors without memory.
        """
        limit = min(self.timeout_s, SHAPES_TIMEOUT_S)
        request = {"code": code, "precision": precision, "shapes": True, "timeout_s": limit}
        return self._answer(request, owner or code, lambda frame, _: shapes_of_answer(frame.header))

    async def waited(self, work: Callable[[], T]) -> T:
        """What some work gives that evaluates references, done in a thread of its own: it may wait long for its turn,
        and must not hold the threads that other work needs."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _answer(self, request: Mapping[str, Any], owner: str, read: Callable[[Frame, float], T]) -> T:
        """What an answer says to a request, given the seconds that it took.

        One that takes long is begun again in the second process, and so is from then on whatever its problem asks for.
        """
        limit = float(request.get("timeout_s", self.timeout_s))
        if owner not in self._slow and self.quick_s < limit:
            try:
                return self._answered(self._quick, request, self.quick_s, read)
            except ReferenceModelError as error:
                if error.kind != "timeout":
                    raise
            self._slow[owner] = None
            while len(self._slow) > MOST_SLOW:
                self._slow.pop(next(iter(self._slow)), None)
        return self._answered(self._patient if owner in self._slow else self._quick, request, limit, read)

    def _answered(
        self, lane: Conversation, request: Mapping[str, Any], limit: float, read: Callable[[Frame, float], T]
    ) -> T:
        limits = {"shapes": False, "memory_mb": self.memory_mb, "device": self.device}
        text = json.dumps({**limits, **request, "timeout_s": limit}).encode()
        frame, seconds = lane.answer(text, limit, (self.memory_mb << 20) + HEADER_BYTES)
        if "error" in frame.header:
            raise _failure(frame.header)
        try:
            return read(frame, seconds)
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            said = f"what the reference's process answered makes no sense ({shown(error, 200)}). Was it forged?"
            raise ReferenceModelError("error", said) from error

    def close(self) -> None:
        """End the processes for good: evaluations under way, in line and later fail at once with `crash`."""
        self._patient.close()
        self._quick.close()
        self._threads.shutdown(wait=False)


def _failure(header: Mapping[str, Any]) -> ReferenceModelError:
    """What a process said went wrong. Its words are a problem's, which may say anything."""
    kind, message = header["error"], header.get("message")
    said = inert(message[:MESSAGE_CHARS]) if isinstance(message, str) else "it did not say how"
    return ReferenceModelError(kind if kind in KINDS else "error", f"the reference failed: {said}")


def _result(frame: Frame, precision: Precision, seconds: float) -> ReferenceResult:
    header = frame.header
    cases: dict[str, Case] = {}
    outputs: tuple[tuple[str, tuple[int, ...]], ...] = ()
    for entry in header["cases"]:
        rounded = [frame.tensor(tensor) for tensor in entry["rounded"]]
        exact = tuple(frame.tensor(tensor).array() for tensor in entry["exact"])
        outputs = outputs or tuple((tensor.dtype, tensor.shape) for tensor in rounded)
        inputs = tuple(frame.value(value) for value in entry["inputs"])
        after = left_of(frame, entry["after"], inputs)
        own = own_of(frame, entry["own"], inputs, rounded)
        arrays = tuple(tensor.array() for tensor in rounded)
        cases[entry["family"]] = Case(entry["family"], inputs, exact, arrays, after, own)
    other_weights, again = cases.pop("other_weights", None), cases.pop("again", None)
    return ReferenceResult(
        cases=tuple(cases.values()),
        outputs=outputs,
        parameters=header["parameters"],
        weights=tuple((name, tuple(shape)) for name, shape in header["weights"]),
        needed=tuple(header.get("needed", ())),
        carries=header.get("carries") is True,
        initial=tuple(header["initial"]),
        fixed=tuple(map(str, header["fixed"])),
        structure=header.get("structure"),
        meeting=frozenset((int(one), int(other)) for one, other in header.get("meeting", ())),
        precision=precision,
        exact_dtype=header["exact"],
        init_inputs=frame.value(header["init_inputs"]),
        state={name: frame.tensor(tensor) for name, tensor in header.get("state", {}).items()},
        work=work_of(header.get("work", {})),
        init_work=counted(header["init_work"]),
        draws=tuple((str(name), tuple(map(float, numbers))) for name, numbers in header["draws"]),
        refused=header["refused"],
        peak_mb=header["peak_mb"],
        other_weights=other_weights,
        again=again,
        seconds=seconds,
    )


def screening_of(result: ReferenceResult) -> Screening:
    """Whether the problem behind an evaluation (made with `for_screening`) is worth a reward."""
    return screen(result.cases, result.other_weights, result.again, result.precision, result.carries)


def may_pass(error: ReferenceModelError) -> bool:
    """Whether a machine under load may be to blame for a failure, so that a later attempt can succeed."""
    return error.kind in _PASSING


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

    Where it runs but is degenerate at `MAX_DEGENERATE` sizes of each rule that keeps it running, the smallest of them
    is returned, with the reason. A size that takes too long, too much memory or gives too large an output ends its
    rule, unless that lowers the caps; a second one that takes too long ends the search.

    Raises:
        ReferenceModelError: the reference runs at no size; the first failure, or the first for which a machine under
            load may be to blame (`timeout`, `memory`). `crash`, which blames no size, is raised at once.
    """
    if (fault := find_fault(problem.code)) is not None:
        raise ReferenceModelError("error", f"the problem's module {fault}.")
    failure: ReferenceModelError | None = None
    degenerate: list[FittedProblem] = []
    spent: dict[tuple[Rule, bool], int] = {}
    timeouts = 0
    for scaled in ladder(problem):
        rung = (scaled.scaling.rule, 0 < scaled.scaling.cap <= max(LOWER))
        # Lower caps and other shapes are for what does not run; what is degenerate needs larger sizes, or none help.
        if spent.get(rung, 0) >= MAX_DEGENERATE or (degenerate and (rung[1] or rung[0] in ("uniform", "none"))):
            continue
        try:
            result = process.evaluate(
                scaled.code,
                input_seed=input_seed,
                weight_seed=weight_seed,
                precision=precision,
                for_screening=True,
                max_output=max_output,
                owner=problem.hash,
            )
        except ReferenceModelError as error:
            timeouts += error.kind == "timeout"
            if error.kind == "crash" or timeouts >= MAX_TIMEOUTS:  # `crash`: the process is gone, for all sizes
                raise
            if failure is None or (may_pass(error) and not may_pass(failure)):
                failure = error
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
