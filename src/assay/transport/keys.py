"""API keys from environment variables, and the headers that carry them."""

from __future__ import annotations

import os

from assay.errors import ConfigError


def read_key(variable: str) -> str:
    """The API key that an environment variable holds; empty where it is not set.

    Raises:
        ConfigError: it holds something that cannot be a key.
    """
    key = os.environ.get(variable, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(f"{variable} holds characters that cannot be in an API key. Was it copied completely?")
    return key


def json_headers(key: str) -> dict[str, str]:
    """Headers of a request with a JSON body; an empty key is not sent."""
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    return {**headers, "Authorization": f"Bearer {key}"} if key else headers
