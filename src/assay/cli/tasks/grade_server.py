"""`assay grade-server`: the grader as a service for trainers on other machines, or other accounts of this one."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence

from assay.cli.options import listed
from assay.config import Layer, build
from assay.config.sources import COMMAND_LINE, read_overrides
from assay.kernels.service.wire import KEY_VARIABLE
from assay.server.grading.app import serve
from assay.server.grading.config import GradeServerConfig

_EPILOG = f"""\
settings (key=value; --settings lists all of them):
  host=127.0.0.1          any other address needs a key in {KEY_VARIABLE}
  port=8177               0 takes a free one
  backend=triton          language of the kernels that it grades
  device=cpu              Triton's interpreter; cuda runs kernels on a GPU
  run_on=local            modal grades in containers at Modal
  measure_performance     true times right kernels; needs a GPU
  max_requests=512        requests that wait or are worked on at a time
  stop_s=30               seconds that grades have to end after SIGTERM or Ctrl-C

clients:
  export {KEY_VARIABLE}=...
  assay grade --problem 1/1 --kernel kernel.py url=http://HOST:8177
  assay train ... dataset_builder.use_modal=false dataset_builder.grader.url=http://HOST:8177
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument("--settings", action="store_true", help="list every setting")
    parser.epilog = _EPILOG


def run(args: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Serve until a signal."""
    given = dict(read_overrides(overrides).values)
    if listed(args.settings, given, GradeServerConfig):
        return 0
    unknown = "`assay grade-server --settings` lists all settings."
    config = build(GradeServerConfig, [Layer(COMMAND_LINE, given)], unknown=unknown)
    asyncio.run(serve(config, _started))
    return 0


def _started(url: str) -> None:
    print(f"Grading kernels at {url}. Ctrl-C or SIGTERM ends it.", flush=True)
