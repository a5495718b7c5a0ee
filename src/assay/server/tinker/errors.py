"""What goes wrong with a request: a status for HTTP, and a category and a message for the client."""

from __future__ import annotations

import logging
from typing import Literal

from assay.errors import (
    AssayError,
    CheckpointError,
    ConfigError,
    DataError,
    ModelError,
    NonFiniteGradientError,
    RunDirectoryError,
)

logger = logging.getLogger(__name__)

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

    def anew(self) -> RequestError:
        """The same, without where it was raised."""
        return RequestError(self.status, str(self), self.category)


def bad(message: str) -> RequestError:
    """A request that cannot be served as it is."""
    return RequestError(400, message)


def absent(message: str) -> RequestError:
    """Something that is not there, or not the client's."""
    return RequestError(404, message)


def failure(error: BaseException) -> RequestError:
    """What a client is told of an error of the work itself; the log has what is the server's own affair."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, (ModelError, ConfigError, DataError, NonFiniteGradientError, CheckpointError)):
        return RequestError(400, str(error))
    if isinstance(error, RunDirectoryError):
        logger.error("%s", error)
        said = "The server cannot write its files (a full disk, say), so nothing was saved. Its log says more."
        return RequestError(500, said, "server")
    if isinstance(error, AssayError):
        return RequestError(500, str(error), "server")
    logger.error("A request failed, which is a fault of the server's", exc_info=error)
    return RequestError(
        500, f"The server failed at this request ({type(error).__name__}). Its log says more.", "server"
    )
