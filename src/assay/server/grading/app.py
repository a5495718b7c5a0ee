"""The grading service: which requests there are, who may make them, and how it starts and stops.

A request has a verdict in the end, or an answer that says why not: 400 malformed, 401 key, 404, 405, 409 version,
411, 413, 415, 421 host, 422 settings or problem, 503 busy or stopping (with Retry-After). No answer and no log line
holds the key, a problem or a candidate.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections.abc import Callable, Coroutine
from importlib.metadata import PackageNotFoundError, version
from typing import Any, TypeVar

from assay.errors import AssayError, ConfigError
from assay.kernels.problems.sources import Problem
from assay.kernels.service import wire
from assay.kernels.service.wire import GradeRequest, RequestError, reply_body
from assay.kernels.verdicts import Verdict
from assay.server.grading.config import GradeServerConfig, require_key
from assay.server.grading.desk import Desk
from assay.server.grading.http import Answer, Handler, Head, HttpLimits, HttpServer
from assay.server.running import address_of, ended_by_signals
from assay.transport.http import require_parser
from assay.transport.keys import read_key
from assay.types import Json

logger = logging.getLogger(__name__)

RETRY_AFTER_S = 2
SPARE_CONNECTIONS = 64
"""Beyond `max_requests`, for health checks and for those who are told to come again later."""
METHODS = {wire.GRADE: "POST", wire.PREPARE: "POST", wire.CHECK: "POST", wire.HEALTH: "GET"}
STOPPED = "the grading service was stopped before the candidate was graded"

T = TypeVar("T")


class GradingService(Handler):
    """Answers requests, at most `max_requests` at a time."""

    def __init__(self, config: GradeServerConfig, key: str, desk: Desk) -> None:
        self._config, self._desk = config, desk
        self._key = key.encode()
        self._requests = 0
        self._port = config.port
        self.stopping = False
        self._cut_off: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def listens_at(self, port: int) -> None:
        """Which port it is, where a free one was asked for."""
        self._port = port

    def cut_off(self) -> None:
        """Have what is still under way answered with `infra_error`."""
        if not self._cut_off.done():
            self._cut_off.set_result(None)

    def refusal(self, head: Head) -> Answer | None:
        """See `Handler.refusal`."""
        try:
            self._let_in(head)
        except RequestError as error:
            return refused(error)
        return None

    def _let_in(self, head: Head) -> None:
        if head.path not in METHODS:
            raise RequestError(404, "unknown", f"there is nothing at this address, only {', '.join(METHODS)}")
        if head.method != METHODS[head.path]:
            raise RequestError(405, "unknown", f"this address takes {METHODS[head.path]}")
        if not self._key and head.headers.get("host", "").lower() not in self._own_names():
            # A page whose name was made to point here (DNS rebinding) would be one of this machine's users.
            raise RequestError(421, "host", "this service has no key, and answers to its own address only")
        if head.path == wire.HEALTH:
            return
        given = head.headers.get("authorization", "").encode("latin-1")
        if self._key and not hmac.compare_digest(given, b"Bearer " + self._key):
            raise RequestError(401, "key", "the key is missing or wrong")
        if head.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise RequestError(415, "malformed", "Content-Type must be application/json")
        if self.stopping:
            raise RequestError(503, "stopping", "the service is being stopped")
        if (full := self._full(head)) is not None:
            raise full

    def _full(self, head: Head) -> RequestError | None:
        """The refusal of work beyond `max_requests`; a check is no work."""
        if head.path == wire.CHECK or self._requests < self._config.max_requests:
            return None
        return RequestError(503, "busy", f"{self._requests} requests wait already: come again later")

    def _own_names(self) -> frozenset[str]:
        address = f"[{self._config.host}]" if ":" in self._config.host else self._config.host
        names = (address, "localhost")
        return frozenset((*(f"{name}:{self._port}" for name in names), *(names if self._port == 80 else ())))

    def fault(self, status: int, code: str, message: str) -> Answer:
        """See `Handler.fault`."""
        return refused(RequestError(status, code, message))

    async def handle(self, head: Head, body: bytes) -> Answer:
        """See `Handler.handle`."""
        if head.path == wire.HEALTH:
            status = "stopping" if self.stopping else "ok"
            return Answer(200, reply_body("", status=status, requests=self._requests))
        if (full := self._full(head)) is not None:  # others were let in while its body came
            return refused(full)
        self._requests += 1
        began, request_id = time.monotonic(), ""
        try:
            request = wire.read_request(body)
            request_id = request.id
            answer, said = await self._answer(head.path, request)
        except RequestError as error:
            answer, said = refused(error, request_id), f"{error.status} {error.code}"
        except AssayError as error:  # no candidate at all can be graded here
            logger.error("%s", error)
            answer, said = refused(RequestError(500, "fault", str(error)), request_id), "500 fault"
        finally:
            self._requests -= 1
        logger.info("%s %s %s in %.2f s", head.path, request_id or "-", said, time.monotonic() - began)
        return answer

    async def _answer(self, path: str, request: GradeRequest) -> tuple[Answer, str]:
        """The answer, and what the log says of it."""
        config = self._desk.agreed(request.asked)
        if path == wire.CHECK:
            return Answer(200, reply_body(request.id, service=self._about()), _named(request.id)), "200 check"
        if request.problem is None or (path == wire.GRADE and request.code is None):
            raise RequestError(400, "malformed", "the request needs a problem, and a grade also code")
        try:
            if request.code is None or path == wire.PREPARE:
                await self._unless_cut_off(self._desk.prepare(config, request.problem))
                return Answer(200, reply_body(request.id), _named(request.id)), "200 prepare"
            verdict = await self._unless_cut_off(self._desk.grade(config, request.problem, request.code))
        except _CutOff:
            return _stopped(request.id, request.problem), "503 stopping"
        body = reply_body(request.id, verdict=verdict.to_json())
        return Answer(200, body, _named(request.id)), f"200 {verdict.kind}{' (cached)' if verdict.cached else ''}"

    async def _unless_cut_off(self, work: Coroutine[Any, Any, T]) -> T:
        """What some work gives; it is cancelled where the service has to stop, or the client has gone.

        Raises:
            _CutOff: the service has to stop.
        """
        task = asyncio.create_task(work)
        try:
            await asyncio.wait((task, self._cut_off), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise _CutOff
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    def _about(self) -> dict[str, Json]:
        own = self._config
        return {
            "backend": own.backend,
            "device": own.device,
            "run_on": own.run_on,
            "measure_performance": own.measure_performance,
            "max_requests": own.max_requests,
            "packages": {name: _installed(name) for name in ("assay-rl", "torch", "triton")},
        }


class _CutOff(Exception):
    """The service stops, and did not come to a request."""


def _stopped(request_id: str, problem: Problem) -> Answer:
    """For a grade that the service does not come to: a client may ask again, or take the verdict that says so."""
    verdict = Verdict("infra_error", "problem", STOPPED, problem=problem.hash)
    error: Json = {"code": "stopping", "message": STOPPED}
    return Answer(503, reply_body(request_id, verdict=verdict.to_json(), error=error), _later(request_id))


def refused(error: RequestError, request_id: str = "") -> Answer:
    """The answer to a request that is refused."""
    body = reply_body(request_id, error={"code": error.code, "message": str(error)[: wire.MAX_MESSAGE]})
    headers = _later(request_id) if error.status == 503 else _named(request_id)
    return Answer(error.status, body, {**headers, "WWW-Authenticate": "Bearer"} if error.status == 401 else headers)


def _named(request_id: str) -> dict[str, str]:
    return {"X-Request-Id": request_id} if request_id else {}


def _later(request_id: str) -> dict[str, str]:
    return {**_named(request_id), "Retry-After": str(RETRY_AFTER_S)}


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


async def serve(
    config: GradeServerConfig,
    started: Callable[[str], None],
    stop: asyncio.Event | None = None,
    desk: Desk | None = None,
) -> None:
    """Serve until SIGTERM, SIGINT or `stop`; then finish what is under way within `stop_s`, and leave no process.

    Args:
        started: called with the service's address once it listens.
        stop: ends it too, once it is set.
        desk: what grades, in place of what the settings say; closed in the end.

    Raises:
        ConfigError: no key where one is needed, or the port cannot be had.
        SandboxError, MissingDependencyError, CacheError: nothing can be graded on this machine.
    """
    require_parser()
    key = read_key(wire.KEY_VARIABLE)
    require_key(config, key)
    stop = stop or asyncio.Event()
    loop = asyncio.get_running_loop()
    desk = desk or Desk(config, config.max_settings)
    try:
        service = GradingService(config, key, desk)
        limits = HttpLimits(wire.MAX_REQUEST_BYTES, config.max_requests + SPARE_CONNECTIONS, config.read_s)
        http = HttpServer(service, limits)
        listener = await _listen(http, config)
        with ended_by_signals(stop.set):
            port = int(listener.sockets[0].getsockname()[1])
            service.listens_at(port)
            started(address_of(config.host, port))
            await stop.wait()
            service.stopping = True
            listener.close()
            timer = loop.call_later(config.stop_s, service.cut_off)
            await http.finish()
            timer.cancel()
    finally:
        await desk.close()


async def _listen(http: HttpServer, config: GradeServerConfig) -> asyncio.Server:
    try:
        return await asyncio.get_running_loop().create_server(http.protocol, config.host, config.port)
    except OSError as error:
        raise ConfigError(
            f"Port {config.port} at {config.host} cannot be used ({error.strerror}). Give another one with port=..."
        ) from error
