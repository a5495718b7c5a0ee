"""`assay score`: the rollouts of a run judged again (`--run`), or any file of completions (`--input`)."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from assay.cli.options import add_settings_help, config_of
from assay.errors import ConfigError, RewardError

CHANGED_MOST = (
    "options",
    "judge.base_url",
    "judge.model",
    "judge.api_key_env",
    "engine.max_in_flight",
    "engine.call_deadline_s",
    "engine.budget_usd",
    "engine.offline",
    "engine.max_failure_rate",
)
"""Settings that `--help` shows."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--run", type=Path, metavar="DIR", help="run directory whose saved rollouts are judged again")
    what.add_argument("--input", type=Path, metavar="FILE", help="JSON lines with `response` and what the reward needs")
    parser.add_argument(
        "--reward",
        action="append",
        metavar="NAME",
        help="with --input: a reward's name, path.py:function or module:name; several: path.py:f,math*0.5",
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="where scores go (default: beside what is judged)")
    add_settings_help(
        parser,
        "assay.integrations.common.settings:HostConfig",
        CHANGED_MOST,
        "These are for --input: `assay settings --of score` shows all. With --run, any setting of the run may be\n"
        "given, such as those of its environment's reward: `assay settings dataset_builder`.",
    )


def run(args: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Judge, and print what came of it as JSON."""
    if args.run is not None:
        if args.reward is not None:
            raise ConfigError("--reward goes with --input. A run has its own; change it with key=value.")
        from assay.cli.runs.rescore import OUTPUT, rescore

        output = args.output or args.run / OUTPUT
        print(json.dumps(rescore(args.run, config_of(args.run, overrides), output), indent=2))
        return 0
    if args.reward is None:
        from assay.rewards.named import REWARD

        known = ", ".join(REWARD.known)
        raise ConfigError(
            f"--input needs to know what to score with: --reward path.py:function, module:name, or {known}."
        )
    from assay.cli.tasks.score_file import score_file
    from assay.config.sources import COMMAND_LINE, read_overrides
    from assay.integrations.common.settings import read_settings

    names = [name for given in args.reward for name in given.split(",")]
    given = {**read_overrides(overrides).values, "reward": names}
    output = args.output or args.input.with_suffix(".scores.jsonl")
    found = score_file(args.input, output, read_settings(given, said=COMMAND_LINE))
    print(json.dumps(found, indent=2))
    if found["samples"] and found["errored"] == found["samples"]:
        counts = ", ".join(f"{count} {kind}" for kind, count in found["failures"].items())
        none = f"None of the {found['samples']} samples could be scored ({counts})"
        raise RewardError(f"{none}: {str(found['first_failure']).rstrip('.')}.")
    return 0
