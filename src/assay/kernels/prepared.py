"""Problems made ready for grading, shared by all grades of a grader and kept while they are in use.

    preparations = Preparations(config, reference, random, seed)
    prepared = await preparations.ready(problem)
    size = await prepared.size()                      None: the problem is not worth a reward
    other = await preparations.other_size(prepared, size)   None: there is no other size
    shapes = await preparations.published(prepared)   None: it is graded at its published size

Making a problem ready takes seconds, so it is done once for all grades that need it. The problems graded last are kept.
A failure, and a refusal that a machine under load may have caused, goes to the grades that wait for it and is not kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import OrderedDict
from collections.abc import Callable, Collection, Coroutine, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from assay.errors import ReferenceModelError
from assay.kernels.config import GraderConfig
from assay.kernels.numerics.reference import ReferenceProcess, fit_problem, may_pass
from assay.kernels.numerics.secret_inputs import InputBank, InputSet
from assay.kernels.numerics.shapes import Shapes
from assay.kernels.operators import kind_of
from assay.kernels.problems.other_sizes import MOST_GROWN, grown, other_sizes
from assay.kernels.problems.scaling import ScaledProblem, keeps_sizes, task_key, unscaled
from assay.kernels.problems.sources import Problem, find_fault
from assay.kernels.program.operations import reference_arithmetic
from assay.kernels.program.sizes.given import LONG_TRIALS, Size

MAX_GROWTH, MAX_GROWTH_APART, MAX_GROWTH_OF_MUCH = 8, 32, 3
"""Times the work of the size graded first that another one may be: more where it tells apart what is equal there, and
less of much work."""
MUCH = 1 << 24
"""Operations of a reference, in a replay seconds of convolutions."""
MAX_STRETCHED, OF_A_BLOCK = 1 << 23, 16
"""Arithmetic of a reference, and elements that it is given, at a size of which one integer alone is larger; and how
many operations of a product take as long as one of others."""

MOST_LONG_KEPT = 64
"""Long sizes of all problems that are kept ready: megabytes each, and the four of a problem are graded one after the
other."""
MESSAGE_CHARS = 500
"""Of why a problem cannot be looked at."""

T = TypeVar("T")


@dataclass(slots=True)
class Prepared:
    """A problem at one of the sizes it is graded at, or why it cannot be graded."""

    scaled: ScaledProblem
    bank: InputBank | None
    refusal: str = ""
    lasting: bool = True
    """False for a refusal for which a machine under load may be to blame: the next grade tries again."""
    has_others: bool = False
    """Whether it may be graded at other sizes too."""
    others: list[ScaledProblem] | None = None
    """Those sizes, once `Preparations.ready` has drawn them."""
    shapes: Shapes | None = None
    """What a submission is given at this size, where nothing is run."""

    async def size(self, but: Collection[InputSet] = ()) -> Size | None:
        """The problem with a draw of its inputs, none of `but`; None where it is not worth a reward.

        Raises:
            ReferenceModelError: the reference does not run.
        """
        draw = await self.bank.take(but) if self.bank is not None else None
        if draw is None:
            return None
        assert self.bank is not None and self.bank.screening is not None, "a bank that gives draws was screened"
        return Size(self.scaled, draw, self.bank.screening.constant_families)

    @property
    def why_not(self) -> str:
        """Why there is no draw."""
        if self.refusal:
            return self.refusal
        assert self.bank is not None and self.bank.screening is not None, "a bank without draws was screened"
        screening = self.bank.screening
        if screening.reason == "stateful":
            return f"{screening.detail}, and a candidate is judged by calls that stand alone. Leave the problem out."
        return (
            f"the problem is not worth a reward at this size ({screening.reason}: {screening.detail}); a kernel that "
            "computes something else would pass. Leave it out, or grade it at larger sizes."
        )


class Closed(Exception):
    """The grader was closed while a grade waited for what grades share."""


class Preparations:
    """The problems of one grader, by problem and size. Belongs to one event loop."""

    def __init__(
        self, config: GraderConfig, reference: ReferenceProcess, rng: random.Random, seed: int | None = None
    ) -> None:
        """Nothing is made ready yet.

        Args:
            config: Settings of the grader.
            reference: Runs references.
            rng: Draws the seeds that no candidate may know.
            seed: Of the draws, in place of secret ones; never for training.
        """
        self._config, self._reference, self._random, self._seed = config, reference, rng, seed
        self._tasks: OrderedDict[str, asyncio.Task[Prepared]] = OrderedDict()
        self._long: OrderedDict[str, asyncio.Task[Prepared]] = OrderedDict()
        """Of long sizes."""

    async def ready(self, problem: Problem | ScaledProblem) -> Prepared:
        """The problem at the sizes that the settings say, or at its own; made ready once for all grades.

        Raises:
            Closed: the grader was closed meanwhile.
            ReferenceModelError: the process of the reference is gone.
        """
        key = task_key(problem, self._config.scale)
        prepared = await shared(self.task(key, lambda: self._make_ready(problem)))
        if prepared.has_others and prepared.others is None:
            drawn = await asyncio.to_thread(list, other_sizes(prepared.scaled, self._random))
            prepared.others = prepared.others or drawn  # drawn once for each problem: what is random stays
        next(self._others(prepared), None)  # begun beside the first grade, which may come to need it
        self._published(prepared)
        return prepared

    async def begin(self, problem: Problem | ScaledProblem) -> None:
        """Have a problem ready by the time it is graded; returns once it is, or is known not to be gradable.

        A failure is left to the grade, which tries again.
        """
        with contextlib.suppress(Closed, ReferenceModelError):
            await self.ready(problem)

    async def grown_size(self, prepared: Prepared) -> Size | None:
        """A size of a problem at which all integers are larger than at the one graded first, with a draw; None where
        there is none, or it is far too much work.

        Raises:
            Closed, ReferenceModelError: as above.
        """
        if (scaled := grown(prepared.scaled)) is None:
            return None
        make = partial(self._make_other, scaled, prepared.scaled, MOST_GROWN)
        return await (await shared(self.task(f"grown: {scaled.hash}", make))).size()

    async def shapes_at(self, scaled: ScaledProblem) -> Shapes | None:
        """What a submission is given at a size of its problem, by shapes alone; None where the reference does not run.

        Raises:
            Closed: the grader was closed meanwhile.
        """
        return (await shared(self.task(f"shapes at: {scaled.hash}", partial(self._make_shapes, scaled)))).shapes

    async def stretched_size(self, scaled: ScaledProblem) -> Size | None:
        """A size of a problem, with a draw; None where its reference does not run or it is not worth a reward.

        Raises:
            Closed, ReferenceModelError: as above.
        """
        return await (await shared(self.task(f"stretched: {scaled.hash}", partial(self._make_ready, scaled)))).size()

    async def long_size(self, first: Prepared, scaled: ScaledProblem) -> Size | None:
        """A size of a problem of which one published size alone is large, with a draw of few families; None where its
        reference does not run or gives nothing to compare.

        Args:
            first: The problem at the size graded first, which is worth a reward.

        Raises:
            Closed, ReferenceModelError: as above.
        """
        made = await shared(_task(self._long, MOST_LONG_KEPT, scaled.hash, partial(self._make_long, first, scaled)))
        try:
            return await made.size()
        except ReferenceModelError as error:
            if error.kind == "crash":
                raise
            return None  # of a later draw: the submission was right where the problem is worth a reward

    async def other_size(self, prepared: Prepared, first: Size) -> Size | None:
        """Another size of a problem, with a draw: the first at which its reference runs, that is worth a reward, whose
        tensors have other shapes, and that is not much more work than the one graded first; else the last that runs,
        and is much more work where there is no other.

        Raises:
            Closed, ReferenceModelError: as above.
        """
        found = None
        for task in self._others(prepared):
            if (size := await (await shared(task)).size()) is not None:
                found = size
                if size.work <= _most_growth(size.scaled, size.work) * first.work and size.shapes != first.shapes:
                    break
        for task in self._others(prepared, any_work=True) if found is None else ():
            if (found := await (await shared(task)).size()) is not None:
                break
        return found

    async def published(self, prepared: Prepared) -> Shapes | str | None:
        """What a submission is given at the size that a problem is published with, or why that is not known; None where
        it is graded at that size, or at sizes of the caller's choice.

        Raises:
            Closed: the grader was closed meanwhile.
        """
        if (task := self._published(prepared)) is None:
            return None
        made = await shared(task)
        return made.shapes or made.refusal

    def _published(self, prepared: Prepared) -> asyncio.Task[Prepared] | None:
        if self._config.backend != "triton" or not prepared.has_others or prepared.scaled.scaling.rule == "none":
            return None
        problem = prepared.scaled.problem
        return self.task(f"shapes: {problem.hash}", partial(self._make_shapes, unscaled(problem)))

    async def _make_shapes(self, source: ScaledProblem) -> Prepared:
        """A problem at a size, by shapes alone. One that does not run without values never will."""
        try:
            find = partial(self._reference.shapes, source.code, self._config.precision, owner=source.problem.hash)
            shapes = await self._reference.waited(find)
        except ReferenceModelError as error:
            return Prepared(source, None, str(error)[:MESSAGE_CHARS], lasting=error.kind != "crash")
        return Prepared(source, None, shapes=shapes)

    def _others(self, prepared: Prepared, *, any_work: bool = False) -> Iterator[asyncio.Task[Prepared]]:
        first = prepared.scaled
        for scaled in prepared.others or ():
            if any_work:
                yield self.task(f"other, of any work: {scaled.hash}", partial(self._make_ready, scaled))
            else:
                yield self.task(f"other: {scaled.hash}", partial(self._make_other, scaled, first))

    async def _make_other(self, scaled: ScaledProblem, first: ScaledProblem, growth: int | None = None) -> Prepared:
        """A problem at another size, unless that is seen to be much more work without running anything."""
        least, work = [await self._work(each) for each in (first, scaled)]
        if least and work > (growth or _most_growth(scaled, work)) * least:
            return Prepared(scaled, None, f"{work // least} times the work of the size graded first")
        return await self._make_ready(scaled)

    async def _work(self, scaled: ScaledProblem) -> int:
        """What a reference computes, or is given, found by shapes alone; 0 where it does not run so."""
        shapes = await self.shapes_at(scaled)
        return 0 if shapes is None else max(reference_arithmetic(shapes.work), shapes.elements)

    async def fits(self, scaled: ScaledProblem, elements: int = MAX_STRETCHED) -> bool:
        """Whether a size is as little work as a replay has time for, products being done by blocks, with so few
        elements."""
        found = await self.shapes_at(scaled)
        if found is None:
            return False
        blocks = {
            name: (calls, work // OF_A_BLOCK)
            for name, (calls, work) in found.work.items()
            if kind_of(name) == "product"
        }
        return reference_arithmetic({**found.work, **blocks}) <= MAX_STRETCHED and found.elements <= elements

    async def _make_long(self, first: Prepared, scaled: ScaledProblem) -> Prepared:
        assert first.bank is not None, "what is graded has a bank"
        bank = InputBank(
            scaled,
            self._reference,
            self._config.precision,
            draws=1,
            uses=self._config.uses_per_draw,
            seed=self._seed,
            screening=first.bank.screening,
            others=LONG_TRIALS - 1,
        )
        try:
            await bank.take()  # a sum of thousands may be rounding error alone, and an exponential of it infinite
        except ReferenceModelError as error:
            if error.kind == "crash":
                raise
            return Prepared(scaled, None, str(error)[:MESSAGE_CHARS], lasting=not may_pass(error))
        return Prepared(scaled, bank)

    async def _make_ready(self, problem: Problem | ScaledProblem) -> Prepared:
        config, screening = self._config, None
        source = problem if isinstance(problem, ScaledProblem) else unscaled(problem)
        if (fault := await asyncio.to_thread(find_fault, source.code)) is not None:
            return Prepared(source, None, f"the problem's module {fault}.")
        try:
            if isinstance(problem, ScaledProblem):
                scaled = problem
            elif keeps_sizes(problem, config.scale):
                scaled = unscaled(problem)
            else:
                seed = self._random.getrandbits(48)
                fit = partial(fit_problem, problem, self._reference, input_seed=seed, precision=config.precision)
                fitted = await self._reference.waited(fit)
                scaled, screening = fitted.scaled, fitted.screening
            bank = InputBank(
                scaled,
                self._reference,
                config.precision,
                draws=config.draws,
                uses=config.uses_per_draw,
                seed=self._seed,
                screening=screening,
                updates=True,
            )
            await bank.ready()
            others = config.scale == "fit" and not isinstance(problem, ScaledProblem)
            return Prepared(scaled, bank, has_others=others)
        except ReferenceModelError as error:
            if error.kind == "crash":  # of the process, which says nothing about the problem
                raise
            refusal = f"the problem's own reference does not run here: {error}"
            return Prepared(source, None, refusal, lasting=not may_pass(error))

    def task(self, key: str, make: Callable[[], Coroutine[Any, Any, Prepared]]) -> asyncio.Task[Prepared]:
        """The task that makes a problem ready, or has done so; started where there is none that is worth keeping."""
        return _task(self._tasks, self._config.max_prepared, key, make)

    def tasks(self) -> list[asyncio.Task[Prepared]]:
        """All of them, the least recently asked for first."""
        return [*self._tasks.values(), *self._long.values()]


def _task(
    among: OrderedDict[str, asyncio.Task[Prepared]],
    most: int,
    key: str,
    make: Callable[[], Coroutine[Any, Any, Prepared]],
) -> asyncio.Task[Prepared]:
    """The task of a key, started where there is none that is worth keeping; the least recently asked for are dropped,
    once they are done, where there are more than `most`."""
    task = among.get(key)
    if task is None or _is_stale(task):
        task = among[key] = asyncio.create_task(make())
    among.move_to_end(key)
    excess = len(among) - most
    if excess > 0:
        idle = [other for other, made in among.items() if made.done() and other != key]
        for other in idle[:excess]:
            del among[other]
    return task


async def shared(task: asyncio.Task[T]) -> T:
    """The result of a task that others wait for too. Cancelling one waiter does not cancel the task.

    Raises:
        Closed: the task was cancelled, which only the grader's `close` does.
    """
    if not task.done():
        await asyncio.wait([task])
    if task.cancelled():
        raise Closed
    return task.result()


def _most_growth(scaled: ScaledProblem, work: int) -> int:
    """Times the work of the size graded first that this size, of so much work, may be."""
    if scaled.scaling.rule != "apart":
        return MAX_GROWTH
    return MAX_GROWTH_APART if work <= MUCH else MAX_GROWTH_OF_MUCH


def _is_stale(task: asyncio.Task[Prepared]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None or not task.result().lasting)
