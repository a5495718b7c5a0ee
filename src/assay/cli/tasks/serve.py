"""`assay serve`: the Tinker protocol over a model of this machine, for training programs here or elsewhere."""

from __future__ import annotations

import argparse
import asyncio
import gc
from collections.abc import Sequence

from assay.cli.options import listed
from assay.config import Layer, build
from assay.config.sources import COMMAND_LINE, read_overrides
from assay.errors import ConfigError
from assay.server.tinker.config import KEY_VARIABLE, ServeConfig

_EPILOG = f"""\
settings (key=value; --settings lists all of them):
  host=127.0.0.1          any other address needs keys in {KEY_VARIABLE}
  port=8178               0 takes a free one
  name=Qwen/Qwen3-8B      the name by which clients ask for the model; default: as --model is written
  state_path=serve        folder for checkpoints
  max_lora_rank=128       largest rank of an adapter
  max_models=64           adapters in training at a time
  local.device=auto       cuda, cpu, ...
  local.dtype=float32     bfloat16 halves the memory of the model

clients (any program for Tinker):
  export TINKER_BASE_URL=http://HOST:8178 TINKER_API_KEY=tml-...
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument("--model", metavar="DIR_OR_ID", help="folder or hub id of the base model")
    parser.add_argument("--settings", action="store_true", help="list every setting")
    parser.epilog = _EPILOG


def run(args: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Serve until a signal."""
    given = dict(read_overrides(overrides).values)
    if listed(args.settings, given, ServeConfig):
        return 0
    if args.model is not None:
        if "model" in given:
            raise ConfigError("The model is named twice: by --model and by model=. Give one of them.")
        given["model"] = args.model
    config = build(ServeConfig, [Layer(COMMAND_LINE, given)], unknown="`assay serve --settings` lists all settings.")
    from assay.server.tinker.serving import serve  # needs what the extra `serve` installs

    asyncio.run(serve(config, lambda url: _started(config, url)))
    return 0


def _started(config: ServeConfig, url: str) -> None:
    # What is loaded by now stays. Searches for garbage leave it out, and so are quick and come often: beside so many
    # objects, what clients leave behind would count for too little to be looked for.
    gc.collect()
    gc.freeze()
    name = config.name or config.model
    print(f"Serving {name} at {url} (TINKER_BASE_URL). Ctrl-C or SIGTERM ends it.", flush=True)
