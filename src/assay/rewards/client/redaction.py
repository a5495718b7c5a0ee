"""Removes an API key from what a server sends: some servers echo it in errors, and replies are kept on disk."""

from __future__ import annotations

import json
from dataclasses import replace

from assay.rewards.client.http import Response

MARK = "[API key]"
SHORTEST_SECRET = 16
"""Shorter keys (`EMPTY`, `none`) are placeholders, and words that a reply may well contain."""


class Redaction:
    """Removes one key."""

    def __init__(self, key: str) -> None:
        self._key = key
        escaped = json.dumps(key)[1:-1]
        forms = dict.fromkeys((key, escaped, escaped.replace("/", "\\/"))) if len(key) >= SHORTEST_SECRET else ()
        self._forms = [form.encode() for form in forms]

    def response(self, response: Response) -> Response:
        """A response whose body does not hold the key, plain or as JSON writes it."""
        for form in self._forms:
            if form in response.body:
                response = replace(response, body=response.body.replace(form, MARK.encode()))
        return response

    def message(self, text: str) -> str:
        """An error message without the key, however short that is."""
        return text.replace(self._key, MARK) if self._key else text
