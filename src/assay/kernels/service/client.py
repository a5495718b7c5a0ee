"""The client of a grading service: a grader whose verdicts come over HTTP.

    async with GradingPool(GraderConfig(url="http://grader:8177")) as pool:      everything is as with a grader here
        verdict = await pool.grade(problem, code)

What a service says is read strictly and within bounds. One that cannot be reached, is full or fails is asked again
until `url_timeout_s` is over; then the grade has failed (`infra_error`), and is no score. One that refuses every grade,
for its key, its version or the settings, is an error. Redirects are not followed, so that neither the key nor a
candidate goes to another host.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import secrets
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from assay.config.urls import without_secrets
from assay.errors import AssayError, ConfigError, GradingServiceError
from assay.kernels.config import GraderConfig
from assay.kernels.problems.scaling import ScaledProblem
from assay.kernels.problems.sources import Problem
from assay.kernels.service import wire
from assay.kernels.verdicts import Verdict, plain_text
from assay.transport.http import HttpPool, Response, ResponseError, TransportError
from assay.transport.keys import json_headers, read_key
from assay.transport.redaction import Redaction
from assay.transport.route import route_to
from assay.transport.waits import backoff_s, retry_after_s
from assay.types import Check, Json

logger = logging.getLogger(__name__)

CHECK_TIMEOUT_S = 15.0
"""In which a service has to answer when a run starts."""
MOST_GARBAGE = 3
"""Replies to one request that are no replies of a grading service, after which it is not asked again."""
MOST_PREPARING = 8
AGAIN = frozenset({408, 425, 429})
"""Refusals, besides those from 500, after which the same request is worth another attempt."""


@dataclass(frozen=True, slots=True)
class Failed:
    """An attempt without an answer."""

    why: str
    wait_s: float | None = None
    garbage: bool = False


class Service:
    """One grading service. Belongs to the event loop of its first request.

    Raises:
        ConfigError: the address or the key is none.  MissingDependencyError: the HTTP parser is not installed.
    """

    def __init__(self, config: GraderConfig) -> None:
        assert config.url is not None, "a service has an address"
        key = read_key(wire.KEY_VARIABLE)
        self._config = config
        self._url = config.url.rstrip("/")
        self._redaction = Redaction(key)
        self._pools = {
            path: HttpPool(route_to(self._url + path, json_headers(key)))
            for path in (wire.GRADE, wire.PREPARE, wire.CHECK)
        }

    def close(self) -> None:
        """Close all connections."""
        for pool in self._pools.values():
            pool.close()

    async def ask(self, path: str, problem: Problem | None = None, code: str | None = None) -> dict[str, Json] | Failed:
        """What the service replies to one attempt, or why there is no reply.

        Raises:
            GradingServiceError, ConfigError: it refuses every such request.
        """
        request_id = secrets.token_hex(8)
        body = wire.request_body(self._config, request_id, problem, code)
        try:
            response = await self._pools[path].post(body)
        except ResponseError as error:
            return Failed(str(error), garbage=True)
        except TransportError as error:
            return Failed(str(error), wait_s=0.0 if error.stale else None)
        return self._read(response, request_id)

    def _read(self, response: Response, request_id: str) -> dict[str, Json] | Failed:
        try:
            reply = wire.read_reply(response.body, request_id)
        except wire.VersionError as error:
            raise GradingServiceError(f"{self.name} cannot be used: {self._clean(str(error))}") from error
        except ValueError as error:
            reply, fault = {}, str(error)
        said = self._clean(wire.error_of(reply)) or f"it answered with status {response.status}"
        if response.status == 200 and reply:
            return reply
        if response.status == 200:
            return Failed(f"what came back is not a reply: {self._clean(fault)}", garbage=True)
        if response.status >= 500 or response.status in AGAIN:
            return Failed(said, retry_after_s(response.headers))
        if response.status in (401, 403):
            raise ConfigError(
                f"{self.name} refuses the key ({said}). Export {wire.KEY_VARIABLE} with the key that the service has."
            )
        if 300 <= response.status < 400:
            raise GradingServiceError(
                f"{self.name} answered with a redirect ({response.status}), which is not followed: the key and the "
                "candidates would go elsewhere. Set url to the address of the service itself."
            )
        raise GradingServiceError(f"{self.name} refuses the request: {said}")

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"The grading service at {without_secrets(self._url)}"

    def _clean(self, text: str) -> str:
        return plain_text(self._redaction.message(text))[: wire.MAX_MESSAGE]


class RemoteGrader:
    """A grader that asks a grading service. Belongs to one event loop.

    Raises:
        ConfigError, MissingDependencyError: see `Service`.
    """

    def __init__(self, config: GraderConfig) -> None:
        self._config = config
        self._service = Service(config)
        self._slots = asyncio.Semaphore(config.url_in_flight)
        self._preparing = asyncio.Semaphore(MOST_PREPARING)
        self._random = random.Random()
        self._closed = False

    @property
    def width(self) -> int:
        """Candidates that the service is asked for at a time."""
        return self._config.url_in_flight

    async def close(self) -> None:
        """Close all connections; grades in flight end as `infra_error`. Safe to call twice."""
        self._closed = True
        self._service.close()

    async def grade(self, problem: Problem | ScaledProblem, code: str) -> Verdict:
        """The verdict of the service. See `Grader.grade`.

        Raises:
            GradingServiceError, ConfigError: the service refuses every grade, or sizes of the caller's choice were
                given, which it does not take.
        """
        asked = _published(problem)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._config.url_timeout_s
        why = ["all places of url_in_flight were taken"]
        try:
            async with asyncio.timeout_at(deadline), self._slots:
                return await self._until_answered(asked, code, why)
        except TimeoutError:
            said = f"{self._service.name} gave no verdict within {self._config.url_timeout_s:g} s ({why[0]})"
            return _failed(said, problem)

    async def _until_answered(self, problem: Problem, code: str, why: list[str]) -> Verdict:
        """Ask again and again; `why` holds what was wrong last, for whoever stops this."""
        why[0] = "it has not answered"
        attempt = garbage = 0
        while not self._closed:
            attempt += 1
            found = await self._service.ask(wire.GRADE, problem, code)
            if isinstance(found, dict):
                try:
                    return wire.read_verdict(found)
                except ValueError as error:
                    found = Failed(f"what came back is not a verdict: {plain_text(str(error))}", garbage=True)
            garbage += found.garbage
            why[0] = found.why
            if garbage >= MOST_GARBAGE:
                return _failed(f"{self._service.name} does not answer as one does: {found.why}", problem)
            logger.debug("%s is asked again: %s", self._service.name, found.why)
            await asyncio.sleep(backoff_s(attempt, self._random.random(), found.wait_s))
        return _failed("the grader was closed before the candidate was graded: make another one", problem)

    async def prepare(self, problem: Problem | ScaledProblem) -> None:
        """Have the service make a problem ready. A failure is left to the grade, which asks again.

        Raises:
            GradingServiceError, ConfigError: see `grade`.
        """
        asked = _published(problem)
        with contextlib.suppress(TimeoutError):  # one that never answers would keep its place for good
            async with self._preparing, asyncio.timeout(self._config.url_timeout_s):
                if not self._closed:
                    await self._service.ask(wire.PREPARE, asked)


def _published(problem: Problem | ScaledProblem) -> Problem:
    if isinstance(problem, ScaledProblem):
        raise GradingServiceError(
            "A grading service chooses the sizes of a problem by `scale`, and was given a problem with sizes of the "
            "caller's choice. Give it the problem, or grade on this machine (url=null)."
        )
    return problem


def _failed(why: str, problem: Problem | ScaledProblem) -> Verdict:
    return Verdict("infra_error", "problem", why, problem=problem.hash)


async def ask_service(config: GraderConfig) -> dict[str, Json]:
    """What the service at `config.url` says of itself, once it has taken the key, the version and the settings.

    Raises:
        GradingServiceError: it does not answer, or not as a service of this version.  ConfigError: it refuses the key.
    """
    service = Service(config)
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            found = await service.ask(wire.CHECK)
    except TimeoutError:
        found = Failed(f"no answer within {CHECK_TIMEOUT_S:g} s")
    finally:
        service.close()
    told = found.get("service") if isinstance(found, dict) else None
    if not isinstance(told, dict):
        why = found.why if isinstance(found, Failed) else "what came back does not say what it is"
        raise GradingServiceError(
            f"{service.name} cannot be used ({why}), so that no kernel could be graded. Start it with "
            "`assay grade-server`, or correct url."
        )
    return told


def check_service(config: GraderConfig) -> dict[str, Json]:
    """The same for callers without an event loop, and for those in one, who wait.

    Raises:
        GradingServiceError, ConfigError: as said.
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(ask_service(config))).result()


async def service_check(config: GraderConfig) -> Check:
    """Whether the service at `config.url` can be used, as a row of `assay doctor`."""
    try:
        told = await ask_service(config)
    except AssayError as error:
        return Check("grading service", False, str(error), "Start `assay grade-server` there, or correct grader.url")
    return Check("grading service", True, f"{config.url} grades {told.get('backend')} on {told.get('device')}"[:200])
