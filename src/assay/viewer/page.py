"""The page: one HTML file that needs nothing else. Code and style are ours; everything of a run is compressed data.

Data stand in script elements of a type that no browser runs, as base64, which holds no character of HTML; the code puts
them into the page as text. The policy in the page's head allows its own script and style by their hashes and no other
source, so that nothing a model or a judge said could load or run anything even if it got into the markup.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path

from assay.storage.files import Writing
from assay.training.run.reader import read_lines
from assay.types import Json
from assay.viewer.catalogue import Catalogue
from assay.viewer.chunks import chunk_of, compressed, index_of

PAGE = "view.html"
"""Name of the page in a run's folder."""
_FOLDER = Path(__file__).parent / "assets"
_SCRIPTS = ("dom", "data", "filters", "curve", "list", "evidence", "tokens", "answers", "app")
"""Files of the script, in order: each may use what stands before it."""


@dataclass(frozen=True, slots=True)
class Assets:
    """The page's own script and style."""

    script: str
    style: str


@cache
def assets() -> Assets:
    """The script (one function around all files, so that it adds no global names) and the style."""
    files = "\n".join((_FOLDER / f"{name}.js").read_text(encoding="utf-8") for name in _SCRIPTS)
    return Assets(f'(() => {{\n"use strict";\n{files}\n}})();\n', (_FOLDER / "viewer.css").read_text(encoding="utf-8"))


def policy(*, served: bool) -> str:
    """The Content-Security-Policy of the page: its own script and style, and, if served, data of its own server."""
    found = assets()
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src '{_hash(found.script)}'",
            f"style-src '{_hash(found.style)}'",
            "connect-src 'self'" if served else "connect-src 'none'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "require-trusted-types-for 'script'",
        )
    )


def write_page(runs: Sequence[Catalogue], output: Path) -> int:
    """Write the page of one run, or of two side by side, with all their rollouts; returns its size in bytes.

    The file is replaced when the new one is whole.

    Raises:
        RunDirectoryError: it cannot be written, or a run's file was damaged since it was indexed.
    """
    temporary = output.with_name(output.name + ".tmp")
    with Writing(output, "the page"):
        try:
            with temporary.open("wb") as file:
                for part in page_parts(runs, served=False):
                    file.write(part)
                size = file.tell()
            os.replace(temporary, output)
        finally:
            temporary.unlink(missing_ok=True)
    return size


def page_parts(runs: Sequence[Catalogue], *, served: bool) -> Iterator[bytes]:
    """The page, piece by piece; a served one without texts, which it asks its server for."""
    names = run_names([run.path for run in runs])
    yield _head(" and ".join(names), served=served).encode()
    yield _data("index", compressed({"runs": [_index(n, run) for n, run in zip(names, runs, strict=True)]}))
    yield f"<script>{assets().script}</script>\n".encode()
    if not served:
        for place, run in enumerate(runs):
            for number in range(len(run.chunks)):
                yield _data(f"chunk-{place}-{number}", chunk_of(run, number))
    yield b"</body>\n</html>\n"


def run_names(paths: Sequence[Path]) -> list[str]:
    """The folders' names, with their parents' where two are the same."""
    names = [path.resolve().name for path in paths]
    if len(set(names)) == len(names):
        return names
    return [f"{path.resolve().parent.name}/{path.resolve().name}" for path in paths]


def _index(name: str, run: Catalogue) -> Json:
    metrics, events = read_lines(run.path / "metrics.jsonl"), read_lines(run.path / "events.jsonl")
    return index_of(name, run, list(metrics), list(events))


def _head(title: str, *, served: bool) -> str:
    return f"""<!doctype html>
<html lang="en"{' data-served=""' if served else ""}>
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{escape(policy(served=served))}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>{escape(title)} - Assay</title>
<link rel="icon" href="data:,">
<style>{assets().style}</style>
</head>
<body>
<div id="app"></div>
<noscript>This page lists and searches rollouts with a script of its own; allow scripts for it.</noscript>
"""


def _data(name: str, data: bytes) -> bytes:
    head = f'<script type="application/octet-stream" id="{name}">'.encode()
    return b"".join((head, base64.b64encode(data), b"</script>\n"))


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
