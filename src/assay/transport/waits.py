"""How long to wait before a request is sent again."""

from __future__ import annotations

from collections.abc import Mapping

BACKOFF_S = 0.1
MAX_BACKOFF_S = 8.0
MAX_WAIT_HINT_S = 120.0
"""Longest wait that is accepted; the call is retried after it at the latest."""
HINT_CHARS = 40
"""Longer headers are no numbers: they are not read, whatever they say."""


def backoff_s(attempt: int, draw: float, hint_s: float | None = None) -> float:
    """Wait before attempt `attempt + 1` (1-based): doubling with jitter, and never less than the provider asks.

    Args:
        draw: uniform in [0, 1); a hint is stretched by up to 10 %, a backoff shrunk by up to a half, so that calls
            refused together do not come back together.
    """
    own = min(MAX_BACKOFF_S, BACKOFF_S * 2.0 ** min(attempt - 1, 30)) * (1 - draw / 2)
    return own if hint_s is None else max(own if attempt > 3 else 0.0, hint_s * (1 + draw / 10))


def number_text(headers: Mapping[str, str], name: str) -> str:
    """A header that should hold a number; empty where it is not there or too long to be one."""
    value = headers.get(name, "")
    return value if len(value) <= HINT_CHARS else ""


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait, from `retry-after-ms` or `retry-after`; None where neither says a number."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            wait_s = float(number_text(headers, name)) * unit
        except ValueError:
            continue  # retry-after may also be a date, which needs the server's clock: not believed
        if wait_s >= 0:
            return min(wait_s, MAX_WAIT_HINT_S)
    return None
