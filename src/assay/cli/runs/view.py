"""`assay view`: a page to read a run's rollouts in, or two runs side by side."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from assay.errors import ConfigError
from assay.storage.files import human_bytes
from assay.training.run.rollouts import TRACES
from assay.viewer.catalogue import Catalogue, read_catalogue
from assay.viewer.page import PAGE, write_page
from assay.viewer.server import ViewerServer

SERVE_FROM = 150_000_000
"""Bytes of traces from which a page is served and not written, since one file with all of it opens slowly."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument("run", type=Path, metavar="RUN", help="run directory (`log_path` of the run)")
    parser.add_argument("other", type=Path, nargs="?", metavar="RUN2", help="a run to compare with, step by step")
    parser.add_argument("--output", type=Path, metavar="FILE", help=f"where the page goes (default: RUN/{PAGE})")
    parser.add_argument(
        "--serve",
        action="store_true",
        help=f"serve the page on this machine until Ctrl-C; chosen by itself from {human_bytes(SERVE_FROM)} of traces",
    )
    parser.add_argument("--port", type=int, default=0, metavar="N", help="port to serve at (default: a free one)")


def run(args: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Write the page, or serve it."""
    if overrides:
        raise ConfigError(f"{overrides[0]!r} is a setting, and `assay view` has none. Give it the folders of runs.")
    if args.serve and args.output is not None:
        raise ConfigError("--serve and --output do not go together: a page that is served is not written.")
    if not 0 <= args.port < 65536:
        raise ConfigError(f"--port {args.port} is not a port. Give a number from 1 to 65535, or leave it out.")
    paths = [path for path in (args.run, args.other) if path is not None]
    size = sum(_size(path / TRACES) for path in paths)
    if size >= SERVE_FROM:
        print(f"Reading {human_bytes(size)} of traces.", flush=True)
    runs = [read_catalogue(path) for path in paths]
    if args.serve:
        return serve(runs, args.port)
    if size >= SERVE_FROM and args.output is None:
        print("One page of that opens slowly, so it is served. Give --output FILE for a page all the same.")
        return serve(runs, args.port)
    output = args.output or args.run / PAGE
    written = write_page(runs, output)
    print(f"{output}: {sum(run.rollouts for run in runs):,} rollouts, {human_bytes(written)}. Open it in a browser.")
    return 0


def serve(runs: Sequence[Catalogue], port: int) -> int:
    """Serve the page until Ctrl-C."""
    try:
        server = ViewerServer(runs, port)
    except OSError as error:
        raise ConfigError(
            f"Port {port} cannot be used ({error.strerror}). Give another one with --port, or leave it out."
        ) from error
    with server:
        try:
            print(f"Serving at {server.url} for this machine only. Ctrl-C ends it.", flush=True)
            server.serve_forever()
        except KeyboardInterrupt:
            print()
    return 0


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0
