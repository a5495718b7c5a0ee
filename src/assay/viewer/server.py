"""The page from a server on this machine, for runs that are too large for one file: it gives texts chunk by chunk.

It listens on 127.0.0.1 alone, knows two kinds of address (the page, a chunk by its numbers) and touches no path that a
request names. A request must name this server as its host: a page from elsewhere whose name was made to point here (DNS
rebinding) is refused.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from assay.errors import RunDirectoryError
from assay.training.run.rollouts import TOKENS, TRACES
from assay.viewer.catalogue import Catalogue, read_catalogue
from assay.viewer.chunks import chunk_of
from assay.viewer.page import page_parts, policy

logger = logging.getLogger(__name__)

HOST = "127.0.0.1"
_CHUNK = re.compile(r"/chunk/([0-9]{1,2})/([0-9]{1,9})")


class ViewerServer(ThreadingHTTPServer):
    """Serves the page of one run or two. A page that is loaded anew shows what the runs have written since."""

    daemon_threads = True

    def __init__(self, runs: Sequence[Catalogue], port: int = 0) -> None:
        super().__init__((HOST, port), _Handler)
        self.runs = list(runs)
        self._sizes = [_sizes(run.path) for run in runs]

    @property
    def url(self) -> str:
        """Address of the page."""
        return f"http://{HOST}:{self.server_port}/"

    @property
    def hosts(self) -> frozenset[str]:
        """What a request may name as its host."""
        return frozenset(f"{name}:{self.server_port}" for name in (HOST, "localhost"))

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of a browser that went away before it had its answer; anything else is a bug, with traceback."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]

    def refresh(self) -> None:
        """Read a run again that has written rollouts or committed a step."""
        for place, run in enumerate(self.runs):
            sizes = _sizes(run.path)
            if sizes != self._sizes[place]:
                self.runs[place], self._sizes[place] = read_catalogue(run.path), sizes


def _sizes(run: Path) -> list[int]:
    """Sizes of the files that say what a run holds; -1 for one that is missing, which whoever reads it next says."""
    files = [run / name for name in (TRACES, TOKENS, "ledger.jsonl")]
    return [file.stat().st_size if file.is_file() else -1 for file in files]


class _Handler(BaseHTTPRequestHandler):
    server: ViewerServer
    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_GET(self) -> None:
        """Answer with the page, a chunk, or one line of what is wrong."""
        if self.headers.get("Host", "").lower() not in self.server.hosts:
            self._refuse(HTTPStatus.MISDIRECTED_REQUEST, f"This server answers to {self.server.url} only.")
            return
        path = self.path.partition("?")[0]
        try:
            if path == "/":
                self.server.refresh()
                self._send(b"".join(page_parts(self.server.runs, served=True)), "text/html; charset=utf-8")
            elif found := _CHUNK.fullmatch(path):
                run = self.server.runs[int(found[1])]
                self._send(chunk_of(run, int(found[2]), level=1), "application/octet-stream")
            else:
                self._refuse(HTTPStatus.NOT_FOUND, "There is nothing but the page here.")
        except IndexError:
            self._refuse(HTTPStatus.NOT_FOUND, "There is no such chunk.")
        except RunDirectoryError as error:
            logger.error("%s", error)
            self._refuse(HTTPStatus.CONFLICT, str(error))

    def _send(self, body: bytes, kind: str, status: HTTPStatus = HTTPStatus.OK) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("Content-Security-Policy", f"{policy(served=True)}; frame-ancestors 'none'")
        self.end_headers()
        self.wfile.write(body)

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        self._send(why.encode(), "text/plain; charset=utf-8", status)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing of each request: what a browser asks for is of no interest, and its text is not ours."""
