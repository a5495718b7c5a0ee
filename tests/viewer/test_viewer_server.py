"""The loopback server of `assay view`: what it gives, to whom, and what it refuses."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path

import pytest

from assay.cli.main import main
from assay.cli.runs import view
from assay.types import Score
from assay.viewer.catalogue import read_catalogue
from assay.viewer.chunks import chunk_of
from assay.viewer.server import ViewerServer
from support.viewer_runs import RunFiles, Said


@pytest.fixture
def run(files: RunFiles, tmp_path: Path) -> Path:
    shutil.copytree(files.path, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def server(run: Path) -> Iterator[ViewerServer]:
    with ViewerServer([read_catalogue(run)]) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(server: ViewerServer, path: str, method: str = "GET", **headers: str) -> tuple[HTTPResponse, bytes]:
    connection = HTTPConnection("127.0.0.1", server.server_port)
    connection.putrequest(method, path, skip_host="Host" in headers)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    reply = connection.getresponse()
    body = reply.read()
    connection.close()
    return reply, body


def test_it_gives_the_page_and_its_chunks(server: ViewerServer, run: Path) -> None:
    reply, page = ask(server, "/")
    assert reply.status == 200 and b'data-served=""' in page and b'id="chunk-' not in page
    policy = str(reply.headers["Content-Security-Policy"])
    assert "connect-src 'self'" in policy and "frame-ancestors 'none'" in policy
    reply, chunk = ask(server, "/chunk/0/0")
    assert reply.status == 200 and gzip.decompress(chunk) == gzip.decompress(chunk_of(read_catalogue(run), 0))
    assert reply.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "[::1]:{port}", ""]
)
def test_a_foreign_host_is_refused(server: ViewerServer, host: str) -> None:
    for path in ("/", "/chunk/0/0"):
        reply, body = ask(server, path, Host=host.format(port=server.server_port))
        assert reply.status == 421 and b"answers to http://127.0.0.1" in body and b"What is" not in body


def test_its_own_names_are_not(server: ViewerServer) -> None:
    for host in ("127.0.0.1", "localhost", "LOCALHOST"):
        assert ask(server, "/", Host=f"{host}:{server.server_port}")[0].status == 200


@pytest.mark.parametrize(
    "path",
    [
        "/config.json", "/../config.json", "/%2e%2e/config.json", "//etc/passwd", "/chunk/0/../../config.json",
        "/chunk/0/1", "/chunk/1/0", "/chunk/0/-1", "/chunk/0/0/", "/chunk/0/999999999", "/chunk/0/0;x",
    ],
)  # fmt: skip
def test_nothing_else_is_there(server: ViewerServer, path: str) -> None:
    connection = socket.create_connection(("127.0.0.1", server.server_port))
    host = f"127.0.0.1:{server.server_port}"
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
    said = connection.makefile("rb").read()
    connection.close()
    assert said.startswith(b"HTTP/1.1 404 ") and b"log_path" not in said


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_it_only_reads(server: ViewerServer, method: str) -> None:
    assert ask(server, "/", method)[0].status == 501


def test_it_listens_on_this_machine_only(server: ViewerServer) -> None:
    assert server.server_address[0] == "127.0.0.1"


def test_a_page_loaded_anew_shows_what_the_run_has_written_since(server: ViewerServer, run: Path) -> None:
    before = len(ask(server, "/")[1])
    more = RunFiles(run)
    more.step(6, [more.group("later", [[Said("new", Score("scored", 1.0))]])])
    assert len(ask(server, "/")[1]) > before
    bodies = json.loads(gzip.decompress(ask(server, "/chunk/0/0")[1]))
    assert bodies[-1]["rollouts"][0]["turns"][0]["text"] == "new"


def test_a_run_that_is_damaged_meanwhile_is_one_line(server: ViewerServer, run: Path) -> None:
    (run / "traces.jsonl").write_bytes(b"{\n")
    reply, body = ask(server, "/")
    assert reply.status == 409 and b"line 1 is damaged" in body and b"Traceback" not in body


def test_a_browser_that_goes_away_is_no_error(
    server: ViewerServer, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = RunFiles(run)
    more.step(6, [more.group("long", [[Said("".join(map(chr, range(256, 50_000))) * 3, Score("scored", 1.0))]])])
    server.daemon_threads = False  # so that closing it waits for the requests that are out
    for _ in range(3):
        connection = socket.create_connection(("127.0.0.1", server.server_port))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close by a reset
        connection.sendall(f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{server.server_port}\r\n\r\n".encode())
        connection.close()
    assert ask(server, "/")[0].status == 200
    server.shutdown()
    server.server_close()
    assert capsys.readouterr().err == ""


def test_a_run_that_is_removed_meanwhile_is_one_line(server: ViewerServer, run: Path) -> None:
    shutil.rmtree(run)
    for path, said in (("/chunk/0/0", b"traces.jsonl cannot be read"), ("/", b"holds no run")):
        reply, body = ask(server, path)
        assert reply.status == 409 and said in body


def test_the_command_serves_until_it_is_interrupted(run: Path) -> None:
    command = [sys.executable, "-m", "assay", "view", str(run), "--serve"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Tests that a shell started in the background ignore SIGINT, and so would what they start.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        assert said.startswith("Serving at http://127.0.0.1:") and "Ctrl-C" in said
        os.kill(process.pid, signal.SIGINT)
        rest, errors = process.communicate(timeout=60)
        assert process.returncode == 0 and rest.strip() == "" and errors == ""
    finally:
        process.kill()
        process.wait()


def test_a_large_run_is_served_and_says_why(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(server: ViewerServer) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(view, "SERVE_FROM", 100)
    monkeypatch.setattr(ViewerServer, "serve_forever", interrupted)
    assert main(["view", str(run)]) == 0
    said = capsys.readouterr().out
    assert "so it is served" in said and "Serving at http://127.0.0.1:" in said
    assert not (run / "view.html").exists()
    assert main(["view", str(run), "--output", str(run / "page.html")]) == 0
    assert (run / "page.html").exists()


def test_a_port_in_use_is_one_line(server: ViewerServer, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["view", str(run), "--serve", "--port", str(server.server_port)]) == 2
    assert f"Port {server.server_port} cannot be used" in capsys.readouterr().err
