"""What goes wrong with a request: a status for HTTP, and a category and a message for the client."""

from __future__ import annotations

from typing import Literal

from assay.errors import AssayError, ConfigError, DataError, ModelError, NonFiniteGradientError

Category = Literal["user", "server", "unknown"]
MAX_MESSAGE = 2000
"""Characters of a message that a client gets."""


class RequestError(Exception):
    """A request that is refused, or failed."""

    def __init__(self, status: int, message: str, category: Category = "user") -> None:
        super().__init__(message[:MAX_MESSAGE])
        self.status = status
        self.category = category

    @property
    def body(self) -> dict[str, str]:
        """As clients read it."""
        return {"error": str(self), "category": self.category}


def bad(message: str) -> RequestError:
    """A request that cannot be served as it is."""
    return RequestError(400, message)


def absent(message: str) -> RequestError:
    """Something that is not there, or not the client's."""
    return RequestError(404, message)


def failure(error: BaseException) -> RequestError:
    """What a client is told of an error of the work itself."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, (ModelError, ConfigError, DataError, NonFiniteGradientError)):
        return RequestError(400, str(error))
    if isinstance(error, AssayError):
        return RequestError(500, str(error), "server")
    return RequestError(
        500, f"The server failed at this request ({type(error).__name__}). Its log says more.", "server"
    )
