"""URLs in settings, which may hold a key: settings are shown in messages and kept with a run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import urlsplit


def without_secrets(url: str) -> str:
    """A URL as messages may show it: without user, password, query and fragment, any of which may be a key."""
    shown = re.split(r"[?#]", url, maxsplit=1)[0]
    scheme, _, rest = shown.rpartition("://")
    rest = rest.rpartition("@")[2]
    return (f"{scheme}://{rest}" if scheme else rest) + ("?..." if len(shown) < len(url) else "")


def is_url(url: str) -> bool:
    """Whether it names a host."""
    try:
        return bool(urlsplit(url).hostname)
    except ValueError:
        return False


def has_user(url: str) -> bool:
    """Whether a user name or a password stands before the host."""
    return "@" in url.partition("://")[2].partition("/")[0]


def kept_secrets(name: str, url: str | None) -> Iterator[str]:
    """What is wrong with a URL that would be kept, in settings and logs, with what may be a key."""
    if url is not None and (has_user(url) or "?" in url or "#" in url):
        yield (
            f"{name}={without_secrets(url)!r} has a user, a password, ? or # (not shown here: it may be a key), which "
            "would be kept with the run and shown in logs. Remove it, and give keys in environment variables."
        )
