"""Jobs in containers of Modal: the same `Job` and `JobResult`, one candidate per container process.

    async with ModalSandbox(ModalConfig(modal_gpu_type="H100")) as sandbox:
        result = await sandbox.run(job)

Jobs that come within a short window leave together, as one unordered starmap; each is answered as soon as its own
container is done, so a slow kernel delays no other job. Nothing is awaited under a lock. What is lost on the way is
tried again alone, and in the end `infra`; only an input that ran out of its time is `timeout`. All rounds of a job go
out at once, so `after_round` is called afterwards, on the outputs that came: it decides what counts, not what runs.
Jobs in step (`run_in_step`) go to one container together and take turns there.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import inspect
import logging
import secrets
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from assay.errors import DataError, MissingDependencyError, SandboxError, pip_install
from assay.sandbox.base import AfterRound, Job, JobResult
from assay.sandbox.lockstep import Group
from assay.sandbox.modal.config import BatchLost, Lost, ModalConfig
from assay.sandbox.modal.payload import Answer, encode_group, encode_job, open_answer

Results = JobResult | tuple[JobResult, ...]
"""Of a job, or of jobs in step."""

log = logging.getLogger(__name__)


class Remote(Protocol):
    """What runs payloads elsewhere, each in a container process of its own."""

    def answers(self, harness: str, payloads: Sequence[bytes]) -> AsyncGenerator[object, None]:
        """Per payload what its container answered (it can be anything) or a `Lost`, in the order of their ends.

        Raises:
            BatchLost: no more answers will come.
        """
        ...

    async def close(self) -> None:
        """Give back connections."""
        ...


@dataclass(eq=False, slots=True)
class _Waiter:
    job: Job | Group
    token: str
    done: asyncio.Future[Results]


class ModalSandbox:
    """A `Sandbox` of containers at Modal. Belongs to the event loop that first uses it.

    Raises:
        MissingDependencyError: the package modal is not installed.
    """

    def __init__(self, config: ModalConfig | None = None, remote: Remote | None = None) -> None:
        """`remote` replaces Modal, where something else runs the payloads."""
        self.config = config or ModalConfig()
        self._remote = remote or modal_remote(self.config)
        self._slots = asyncio.Semaphore(self.config.modal_max_containers)
        self._waiting: dict[str, list[_Waiter]] = defaultdict(list)
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._batches: set[asyncio.Task[None]] = set()
        self._proven: set[str] = set()
        """Harnesses of which a job was run."""
        self._closed = False

    async def __aenter__(self) -> ModalSandbox:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def run(self, job: Job, after_round: AfterRound | None = None) -> JobResult:
        """The result of one job; waits for a free container. See `Sandbox.run`, and above for `after_round`.

        Raises:
            SandboxError: Modal or the app refuses every job; the message says what to do.
        """
        (result,) = _each(await self._run(_within(job, self.config.modal_timeout)), 1)
        return await tell(result, job, after_round)

    async def run_in_step(self, group: Group) -> tuple[JobResult, ...]:
        """The results of jobs that take turns in one container; see `assay.sandbox.lockstep`. They share its time.

        Raises:
            SandboxError: Modal or the app refuses every job; the message says what to do.
        """
        share = self.config.modal_timeout / len(group.jobs)
        within = Group(tuple(_within(job, share) for job in group.jobs), group.order)
        return _each(await self._run(within), len(group.jobs))

    async def _run(self, job: Job | Group) -> Results:
        result: Results = JobResult("infra", "the sandbox was closed")
        for attempt in range(1 + self.config.modal_retries):
            async with self._slots:
                if self._closed:
                    break
                result = _retried(await self._attempt(job, alone=attempt > 0), attempt > 0)
            if (lost := _lost(result)) is None:
                break
            log.warning("a job of %s was lost at Modal (%s)", job.harness, lost.message)
        return result

    async def close(self) -> None:
        """Drop the jobs in flight, which end as `infra`. Safe to call twice."""
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        for waiters in self._waiting.values():
            _give(waiters, JobResult("infra", "the sandbox was closed"))
        self._waiting.clear()
        batches = list(self._batches)
        for batch in batches:
            batch.cancel()
        await asyncio.gather(*batches, return_exceptions=True)
        await self._remote.close()

    async def _attempt(self, job: Job | Group, alone: bool) -> Results:
        """One attempt; alone where an earlier one was lost, so that what happens now is certainly its own."""
        waiter = _Waiter(job, secrets.token_hex(16), asyncio.get_running_loop().create_future())
        if alone:
            self._send(job.harness, [waiter])
        else:
            self._gather(waiter)
        return await waiter.done

    def _gather(self, waiter: _Waiter) -> None:
        """Put a job to those that leave next."""
        harness = waiter.job.harness
        self._waiting[harness].append(waiter)
        if len(self._waiting[harness]) >= self.config.modal_batch_size:
            self._leave(harness)
        elif harness not in self._timers:
            loop = asyncio.get_running_loop()
            self._timers[harness] = loop.call_later(self.config.modal_batch_window, self._leave, harness)

    def _leave(self, harness: str) -> None:
        if timer := self._timers.pop(harness, None):
            timer.cancel()
        if batch := [waiter for waiter in self._waiting.pop(harness, []) if not waiter.done.done()]:
            self._send(harness, batch)

    def _send(self, harness: str, batch: list[_Waiter]) -> None:
        task = asyncio.get_running_loop().create_task(self._exchange(harness, batch))
        self._batches.add(task)

        def deserted(gone: asyncio.Future[Results]) -> None:
            if gone.cancelled() and all(waiter.done.done() for waiter in batch):
                task.cancel()

        for waiter in batch:
            waiter.done.add_done_callback(deserted)
        task.add_done_callback(partial(self._over, batch))

    def _over(self, batch: list[_Waiter], task: asyncio.Task[None]) -> None:
        """Answer every waiter of a batch that is over."""
        self._batches.discard(task)
        error = None if task.cancelled() else task.exception()
        _give(batch, error or JobResult("infra", "the sandbox was closed"))

    async def _exchange(self, harness: str, batch: list[_Waiter]) -> None:
        """Send a batch, and give each waiter its answer as it comes."""
        open_ = {waiter.token: waiter for waiter in batch}
        payloads = [_encoded(waiter.job, waiter.token) for waiter in batch]
        lost: list[Lost] = []
        try:
            async with asyncio.timeout(self.config.modal_queue_timeout):
                async with contextlib.aclosing(self._remote.answers(harness, payloads)) as answers:
                    async for answer in answers:
                        if isinstance(answer, Lost):
                            lost.append(answer)
                        elif foreign := self._deliver(answer, open_):
                            lost.append(foreign)
            verdict = settle(len(open_), lost)
        except TimeoutError:
            verdict = Lost(
                "infra", f"Modal had not answered after modal_queue_timeout={self.config.modal_queue_timeout:g} s"
            )
        except BatchLost as error:
            verdict = error.lost
        _give(open_.values(), outcome(verdict))

    def _deliver(self, payload: object, open_: dict[str, _Waiter]) -> Lost | None:
        """Give an answer to the waiter whose token it bears; `Lost` if no waiter has that token."""
        try:
            answer = open_answer(payload)
        except DataError as error:
            return Lost("infra", str(error))
        waiter = open_.pop(answer.token, None)
        if waiter is None:
            return Lost("infra", "a container answered for a job that was not its own")
        _give([waiter], self._read(answer, waiter.job))
        return None

    def _read(self, answer: Answer, job: Job | Group) -> Results | SandboxError:
        result: Results
        try:
            result = answer.results(job) if isinstance(job, Group) else answer.result(job)
        except DataError as error:
            return JobResult("infra", str(error))
        lost = _lost(result)
        if answer.refused and lost is not None and job.harness not in self._proven:
            return SandboxError(f"No job of {job.harness} can be run in Modal's containers: {lost.message}")
        if lost is None:
            self._proven.add(job.harness)
        return result


def _within(job: Job, wall_s: float) -> Job:
    """A job that may take no longer than that."""
    return dataclasses.replace(job, limits=dataclasses.replace(job.limits, wall_s=min(job.limits.wall_s, wall_s)))


def _encoded(job: Job | Group, token: str) -> bytes:
    return encode_group(job, token) if isinstance(job, Group) else encode_job(job, token)


def _each(result: Results, count: int) -> tuple[JobResult, ...]:
    """A result for each job; what became of a whole container became of each."""
    return (result,) * count if isinstance(result, JobResult) else result


def _lost(result: Results) -> JobResult | None:
    """The result that says that the sandbox failed."""
    return next((item for item in _each(result, 1) if item.end == "infra"), None)


def _retried(result: Results, retried: bool) -> Results:
    if isinstance(result, JobResult):
        return dataclasses.replace(result, retried=retried)
    return tuple(dataclasses.replace(item, retried=retried) for item in result)


def settle(unanswered: int, lost: Sequence[Lost]) -> Lost:
    """What became of the jobs that a whole batch left unanswered, whose failures bear no names."""
    kinds: Mapping[str, Lost] = {item.kind: item for item in lost}
    if refused := kinds.get("refused"):
        return refused
    texts = "; ".join(dict.fromkeys(item.text for item in lost)) or "Modal gave no answer"
    if set(kinds) == {"timeout"} and len(lost) == unanswered:
        return Lost("timeout", texts)
    return Lost("infra", texts if unanswered == 1 else f"{unanswered} jobs of a batch were lost: {texts}")


def outcome(lost: Lost) -> JobResult | SandboxError:
    """What the waiter of a lost job is told."""
    if lost.kind == "refused":
        return SandboxError(lost.text)
    return JobResult(lost.kind, lost.text)


async def tell(result: JobResult, job: Job, after_round: AfterRound | None) -> JobResult:
    """Call `after_round` on outputs that are all here already; after its first False the rest is dropped."""
    if after_round is None:
        return result
    for index, outputs in enumerate(result.outputs[: len(job.rounds) - 1]):
        answer = after_round(index, outputs)
        if not (await answer if inspect.isawaitable(answer) else answer):
            kept = result.outputs[: index + 1]
            return dataclasses.replace(
                result,
                end="stopped",
                message="its caller stopped it",
                outputs=kept,
                round_s=result.round_s[: len(kept)],
            )
    return result


def modal_remote(config: ModalConfig) -> Remote:
    """Modal itself.

    Raises:
        MissingDependencyError: the package modal is not installed.
    """
    try:
        from assay.sandbox.modal.service import ModalRemote
    except ImportError as error:
        raise MissingDependencyError(
            f"Jobs at Modal need the package modal, version 1.6 or newer ({error}). Run {pip_install('modal')}, "
            "or grade on this machine (use_modal=false)."
        ) from error
    return ModalRemote(config)


def _give(waiters: Iterable[_Waiter], answer: Results | BaseException) -> None:
    """Answer those who still wait."""
    for waiter in waiters:
        if waiter.done.done():
            continue
        if isinstance(answer, BaseException):
            waiter.done.set_exception(answer)
        else:
            waiter.done.set_result(answer)
