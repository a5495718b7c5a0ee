"""`@assay.reward`: options of a reward function. The decorated function itself is unchanged."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, overload

from assay.errors import ConfigError

_F = TypeVar("_F", bound=Callable[..., Any])
LONGEST_S = 86_400
"""Most seconds of a `timeout_s`: a day."""
MOST_PROCESSES = 1024
_MARK = "__assay_reward__"


@dataclass(frozen=True)
class FunctionOptions:
    """How a reward function is run and named.

    Attributes:
        name: names the reward in metrics and in the parts of a weighted sum; the function's own by default.
        parts: names of the parts of the `Score`s that it returns, where hosts are to know them beforehand.
        timeout_s: longest that one call may take, in seconds; its sample is then errored. A plain function runs in
            worker processes that can be killed, an `async def` is cancelled.
        on_timeout: what a completion earns, as `invalid`, when the function was still computing at the deadline: such a
            completion is hard to judge, which the model must not be able to exploit. None makes its sample errored, as
            it is when the function waited or had no processor time. Not for batch functions.
        processes: worker processes; by default up to four for a plain function with a `timeout_s`, else a thread.
        version: what else decides its scores besides its file, such as the version of a package. Part of the
            fingerprint.
    """

    name: str | None = None
    parts: tuple[str, ...] | None = None
    timeout_s: float | None = None
    on_timeout: float | None = None
    processes: int | None = None
    version: str = ""

    def __post_init__(self) -> None:
        timeout_s, processes = self.timeout_s, self.processes
        if timeout_s is not None and not (_is_number(timeout_s) and 0 < timeout_s <= LONGEST_S):
            raise ConfigError(
                f"timeout_s={timeout_s!r} of a reward function must be a number of seconds above 0, at most "
                f"{LONGEST_S:,}. Leave it out for no limit of its own."
            )
        if self.on_timeout is not None and (timeout_s is None or not math.isfinite(self.on_timeout)):
            raise ConfigError(
                f"on_timeout={self.on_timeout!r} of a reward function must be a finite number, beside a timeout_s."
            )
        if processes is not None and not (_is_number(processes, int) and 1 <= processes <= MOST_PROCESSES):
            raise ConfigError(
                f"processes={processes!r} of a reward function must be a whole number from 1 to {MOST_PROCESSES}."
            )


def _is_number(value: object, kinds: Any = int | float) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool)


@overload
def reward(function: _F) -> _F: ...


@overload
def reward(
    *,
    name: str | None = None,
    parts: Sequence[str] | None = None,
    timeout_s: float | None = None,
    on_timeout: float | None = None,
    processes: int | None = None,
    version: str = "",
) -> Callable[[_F], _F]: ...


def reward(function: Any = None, *, parts: Sequence[str] | None = None, **said: Any) -> Any:
    """Say more about a reward function: `@assay.reward(timeout_s=5)`. Never required. See `FunctionOptions`.

    Raises:
        ConfigError: impossible values.
    """
    options = FunctionOptions(parts=tuple(parts) if parts is not None else None, **said)

    def mark(function: Any) -> Any:
        setattr(function, _MARK, options)
        return function

    return mark if function is None else mark(function)


def options_of(function: object) -> FunctionOptions:
    """What `@assay.reward` said about a function."""
    found = getattr(function, _MARK, None)
    return found if isinstance(found, FunctionOptions) else FunctionOptions()


def is_marked(function: object) -> bool:
    """Whether `@assay.reward` stands above a function."""
    return isinstance(getattr(function, _MARK, None), FunctionOptions)
