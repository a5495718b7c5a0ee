"""Waits for the SDK's futures within deadlines, and says what went wrong: lost work, or a refusal.

The SDK itself repeats requests that met a busy or unreachable server, for five minutes when it submits one and without
end when it asks for a result. What arrives here is final for the client that was used.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import TypeVar

import tinker
from tinker.lib.retryable_exception import RetryableException

from assay.errors import AssayError, ServiceError, first_line
from assay.terminal import inert
from assay.transport.redaction import Redaction

T = TypeVar("T")

LONGEST_REASON = 400
"""Characters of what a server says that a message repeats."""
REFUSALS = {
    400: "it calls the request malformed",
    401: "it refuses the API key. Check TINKER_API_KEY",
    402: "it asks for billing to be set up",
    403: "the API key has no right to this",
    422: "it does not understand the request",
}
"""HTTP status that no other session would change -> what it says."""
JSON_RESULT = "Server returned a JSON payload"
"""How the SDK begins to say that a result is not in Protobuf."""
SDK_ERRORS = (tinker.TinkerError, RetryableException, ValueError, RuntimeError, AssertionError, LookupError, OSError)
"""What the SDK raises; its own assertions and look-ups fail where a server's answer lacks a part."""


async def answer(future: Awaitable[T], what: str, seconds: float) -> T:
    """The result of a request.

    Args:
        what: names the request in messages: "optim_step".
        seconds: longest wait.

    Raises:
        ServiceError: there is none; `lost` says whether another session may do better.
        AssayError: raised by a loss of the caller's own, and passed on.
    """
    try:
        async with asyncio.timeout(seconds):
            return await future
    except AssayError:
        raise
    except TimeoutError as error:
        raise ServiceError(
            f"{what}: the server gave no result within {seconds:g} s, so whether it was done is not known.", lost=True
        ) from error
    except SDK_ERRORS as error:
        raise failure(what, error) from error


async def in_thread(call: Callable[[], T], what: str, seconds: float) -> T:
    """The result of a blocking call of the SDK.

    In a thread that nobody waits for: the SDK tries an address that does not answer for minutes.

    Raises:
        ServiceError: as `answer`.
    """
    loop = asyncio.get_running_loop()
    found: asyncio.Future[T] = loop.create_future()

    def hand_over(settle: Callable[[], None]) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(lambda: None if found.done() else settle())

    def work() -> None:
        try:
            result = call()
        except SDK_ERRORS as error:
            problem: Exception = error  # which outlives the handler
            hand_over(lambda: found.set_exception(problem))
        except BaseException:
            hand_over(lambda: found.set_exception(RuntimeError(f"{what} failed in the SDK; see the traceback above")))
            raise
        else:
            hand_over(lambda: found.set_result(result))

    threading.Thread(target=work, name="tinker-sdk", daemon=True).start()
    return await answer(found, what, seconds)


def failure(what: str, error: BaseException) -> ServiceError:
    """What an error of the SDK means, in one line."""
    status = status_of(error)
    said = reason(error)
    if status in REFUSALS:
        return ServiceError(f"{what}: the server answered HTTP {status}: {REFUSALS[status]}. It says: {said}")
    if isinstance(error, tinker.RequestFailedError) and error.category is tinker.types.RequestErrorCategory.User:
        return ServiceError(f"{what}: the server refused the request: {said}")
    if JSON_RESULT in said:
        return ServiceError(
            f"{what}: the server answered in JSON, which SDK {tinker.__version__} does not read. It was written for an "
            "SDK before 0.25; ask its keeper for a newer one."
        )
    return ServiceError(f"{what}: the server lost the request ({said}).", lost=True)


def status_of(error: BaseException | None) -> int | None:
    """The HTTP status behind an error, also where the SDK wrapped it; None where there is none."""
    while error is not None:
        if isinstance(error, tinker.APIStatusError):
            return error.status_code
        error = error.__cause__
    return None


def reason(error: BaseException) -> str:
    """What an error says, in one line that is safe to print, without a key."""
    name = type(error).__name__
    text = first_line(error)
    return inert(text if text.startswith(name) else f"{name}: {text}", lines=False)[:LONGEST_REASON]


def cleaned(error: ServiceError, key: str) -> ServiceError:
    """The error without the key, which some servers repeat."""
    return ServiceError(Redaction(key).message(str(error)), lost=error.lost)
