"""A loopback counterpart of the Hugging Face hub: the endpoints that creating a repository and uploading a folder use.

Requests and replies have the form that the hub's API and the batch API of Git LFS give them: small files come inside
the commit, large ones by a signed address of their own, and their SHA-256 is checked.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Hub:
    """What the hub was told."""

    token: str
    url: str = ""
    repositories: dict[str, dict[str, Any]] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    commits: list[str] = field(default_factory=list)
    objects: dict[str, bytes] = field(default_factory=dict)


@contextmanager
def hub(token: str) -> Iterator[Hub]:
    """A hub that takes one token."""
    state = Hub(token)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def answer(self, status: int, body: Any) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def body(self) -> bytes:
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))

        def do_PUT(self) -> None:
            data, digest = self.body(), self.path.removeprefix("/upload/")
            if hashlib.sha256(data).hexdigest() != digest:
                return self.answer(400, {"error": "the content is another one than was announced"})
            state.objects[digest] = data
            return self.answer(200, {})

        def do_POST(self) -> None:
            data = self.body()
            if self.headers.get("Authorization") != f"Bearer {state.token}":
                return self.answer(401, {"error": f"Invalid token: {self.headers.get('Authorization')}"})
            if self.path == "/api/repos/create":
                wanted = json.loads(data)
                name = f"{wanted['organization']}/{wanted['name']}"
                known = name in state.repositories
                state.repositories.setdefault(name, wanted)
                return self.answer(409 if known else 200, {"url": f"{state.url}/{name}"})
            if self.path == "/api/validate-yaml":
                return self.answer(200, {"errors": [], "warnings": []})
            if self.path.endswith("/preupload/main"):
                files = [
                    {
                        "path": file["path"],
                        "uploadMode": "lfs" if file["path"].endswith(".safetensors") else "regular",
                        "shouldIgnore": False,
                    }
                    for file in json.loads(data)["files"]
                ]
                return self.answer(200, {"files": files})
            if self.path.endswith(".git/info/lfs/objects/batch"):
                objects = [
                    {**entry, "actions": {"upload": {"href": f"{state.url}/upload/{entry['oid']}"}}}
                    for entry in json.loads(data)["objects"]
                ]
                return self.answer(200, {"transfer": "basic", "objects": objects})
            if self.path.endswith("/commit/main"):
                return self.commit([json.loads(line) for line in data.splitlines()])
            return self.answer(404, {"error": f"there is no {self.path}"})

        def commit(self, lines: list[dict[str, Any]]) -> None:
            for line in lines:
                value = line["value"]
                if line["key"] == "header":
                    state.commits.append(value["summary"])
                elif line["key"] == "file":
                    state.files[value["path"]] = base64.b64decode(value["content"])
                elif line["key"] == "lfsFile":
                    state.files[value["path"]] = state.objects[value["oid"]]
            name = next(iter(state.repositories))
            self.answer(200, {"commitUrl": f"{state.url}/{name}/commit/{'0' * 40}", "commitOid": "0" * 40})

        def do_GET(self) -> None:
            self.answer(404, {"error": f"there is no {self.path}"})

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
