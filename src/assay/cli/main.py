"""The command line: parse, call, print. A command's modules load when it runs, so that help is quick.

An `AssayError` is printed as its message and becomes the exit status; any other exception is a bug and keeps its
traceback.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from assay.errors import AssayError, ConfigError, RunDirectoryError
from assay.presets import presets

if TYPE_CHECKING:
    from assay.training.config import TrainingConfig

EXTRAS = {
    "torch": "torch",
    "transformers": "torch",
    "tokenizers": "torch",
    "safetensors": "torch",
    "peft": "torch",
    "chess": "chess",
    "wandb": "wandb",
    "httptools": "rewards",
    "ray": "verl",
    "triton": "kernelbench",
    "modal": "modal",
}
"""Optional package -> the extra of this distribution that installs it."""

NOT_OK = 3
"""Exit status of `assay grade` for any verdict but `ok`: 1 and 2 say that nothing was graded."""

_OVERRIDE = re.compile(r"(--)?([A-Za-z_][\w.-]*)=")

_OPTIONS = ("config", "run", "step", "input", "reward", "output", "problem", "kernel", "backend")
"""Options of commands that take a value; `--run=DIR` is one of them and no setting."""

_OVERVIEW = """\
Reinforcement learning for language models from verifiable rewards.

  assay demo                                      train a small chess model here, in minutes, and report
  assay train --config chess --dry-run            say what a run would do
  assay train --config chess learning_rate=3e-4   train; the same command resumes after an interruption
  assay eval --run runs/chess                     measure a run's last checkpoint on held-out tasks
  assay score --run runs/chess                    judge a run's saved rollouts again, with other rewards perhaps
  assay grade --problem 1/1 --kernel kernel.py    grade a GPU kernel nobody trusts, in a sandbox
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        status = _run(arguments)
        sys.stdout.flush()
        return status
    except AssayError as error:
        return _fail(str(error), error.exit_code)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        cure = f"pip install 'assay-rl[{EXTRAS[package]}]'"
        return _fail(f"{package} is not installed, and this command needs it: {cure}.", 1)
    except KeyboardInterrupt:
        again = shlex.join(["assay", *arguments])
        print(
            f"\nInterrupted. What is done is kept; it goes on when the same command is given: {again}",
            file=sys.stderr,
        )
        return 130
    except BrokenPipeError:  # the reader of our output (`| head`) has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _fail(message: str, status: int) -> int:
    print(f"error: {message}", file=sys.stderr)
    return status


def _run(arguments: list[str]) -> int:
    parser = _parser()
    overrides = [a for a in arguments if _is_override(a)]
    args, unknown = parser.parse_known_args([a for a in arguments if not _is_override(a)])
    if args.command is None:
        parser.print_help()
        return 0
    if unknown:
        raise ConfigError(
            f"{unknown[0]!r} is no option of `assay {args.command}`. Settings are written key=value, such as "
            f"learning_rate=3e-4; `assay {args.command} --help` lists what there is."
        )
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[_StderrHandler()])
    logging.getLogger("assay").setLevel(logging.INFO)
    return _COMMANDS[args.command](args, overrides)


def _is_override(argument: str) -> bool:
    """Whether an argument is `key=value` or `--key=value`, and not an option of a command given with `=`."""
    match = _OVERRIDE.match(argument)
    return match is not None and not (match[1] and match[2] in _OPTIONS)


class _StderrHandler(logging.Handler):
    """Writes to whatever `sys.stderr` is at the time, so that log lines go around a progress display."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one record."""
        print(self.format(record), file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    listed = "\n".join(f"  {name:12}  {text}" for name, text in presets().items())
    parser = argparse.ArgumentParser(
        prog="assay",
        description=_OVERVIEW,
        epilog=f"presets:\n{listed}\n\n`assay train --help` lists all settings.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"assay {version('assay-rl')}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")

    train = _add(commands, "train", "train a model; the same command resumes an interrupted run")
    _add_config(train)
    train.add_argument(
        "--dry-run", action="store_true", help="check the config, build the data and print the plan only"
    )
    _add_settings_help(train, "assay.training.config:TrainingConfig")

    evaluate = _add(commands, "eval", "measure a checkpoint of a run on held-out tasks")
    evaluate.add_argument(
        "--run", required=True, type=Path, metavar="DIR", help="run directory (`log_path` of the run)"
    )
    evaluate.add_argument("--step", type=int, metavar="N", help="checkpoint of RL batch N (default: the last one)")
    evaluate.add_argument("--help", "-h", action="help", help="show this message")

    score = _add(commands, "score", "judge completions: those of a run again, or any file of them")
    what = score.add_mutually_exclusive_group(required=True)
    what.add_argument("--run", type=Path, metavar="DIR", help="run directory whose saved rollouts are judged again")
    what.add_argument("--input", type=Path, metavar="FILE", help="JSON lines with `response` and what the reward needs")
    score.add_argument("--reward", metavar="NAME", help="with --input: a reward's name, path.py:name or module:name")
    score.add_argument("--output", type=Path, metavar="FILE", help="where scores go (default: beside what is judged)")
    score.add_argument("--help", "-h", action="help", help="show this message")

    grade = _add(commands, "grade", "grade a kernel against a KernelBench problem; exit status 0 for ok, 3 for not")
    grade.add_argument("--problem", required=True, metavar="FILE|level/id", help="a problem's file, or one by number")
    grade.add_argument(
        "--kernel", required=True, metavar="FILE", help="the kernel: a module with ModelNew; - for stdin"
    )
    grade.add_argument("--backend", choices=("triton", "cuda"), help="its language (default: triton)")
    grade.add_argument("--json", action="store_true", help="print the whole verdict as one JSON object")
    grade.add_argument("--no-cache", action="store_true", help="grade anew, and keep nothing")
    _add_settings_help(grade, "assay.cli.grade:GradeConfig")

    config = _add(commands, "config", "print the whole config that a command would use, as JSON")
    _add_config(config)
    config.add_argument("--help", "-h", action="help", help="show this message")

    demo = _add(commands, "demo", "train a small chess model on this machine, in minutes, and report what it learned")
    demo.add_argument("--help", "-h", action="help", help="show this message")
    return parser


def _add(commands: Any, name: str, summary: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        usage=f"assay {name} [options] [key=value ...]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
    )
    return parser


def _add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config",
        action="append",
        default=[],
        metavar="NAME|PATH",
        help=f"a preset ({', '.join(presets())}) or a YAML file; may be repeated, later ones win",
    )


def _add_settings_help(parser: argparse.ArgumentParser, root: str) -> None:
    text = "show this message, with every setting"
    parser.add_argument("--help", "-h", action=_SettingsHelp, const=root, help=text)


class _SettingsHelp(argparse.Action):
    """`assay train --help` and the like: the options and then every setting, which only then need loading."""

    def __init__(self, option_strings: Sequence[str], dest: str, const: str, help: str | None = None) -> None:
        super().__init__(option_strings, dest=argparse.SUPPRESS, nargs=0, help=help, const=const.split(":"))

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        """Print and leave."""
        from assay.config.help import listing

        module, name = self.const
        root = getattr(import_module(module), name)
        parser.epilog = listing(root, min(120, shutil.get_terminal_size().columns))
        parser.print_help()
        parser.exit()


def _train(args: argparse.Namespace, overrides: list[str]) -> int:
    from assay.training.config import load_config

    config = load_config(args.config, overrides)
    if args.dry_run:
        print(asyncio.run(_plan(config)))
    else:
        from assay.training.loop import train

        train(config)
    return 0


async def _plan(config: TrainingConfig) -> str:
    """The plan of a run whose data sets are built to see how large they are, and closed again."""
    from assay.envs.base import build_data, iter_builders
    from assay.training.plan import describe
    from assay.training.session import num_batches

    data = build_data(config.active_builder, config.build_context())
    try:
        return describe(config, num_batches(config, data), sum(1 for _ in iter_builders(data.heldout)))
    finally:
        await data.close()


def _eval(args: argparse.Namespace, overrides: list[str]) -> int:
    from assay.cli.eval import measure

    print(json.dumps(measure(args.run, _config_of(args.run, overrides), args.step), indent=2))
    return 0


def _config_of(run: Path, overrides: list[str]) -> TrainingConfig:
    """The config of a run. Its own config.json is a layer like any other, so that a setting can be overridden."""
    from assay.config.record import changed_files
    from assay.storage.files import read_object
    from assay.training.config import load_config

    record = run / "config.json"
    if not record.is_file():
        raise RunDirectoryError(f"{run} holds no run: there is no config.json in it. Give the log_path of a run.")
    for file in changed_files(read_object(record) or {}):
        logging.getLogger(__name__).warning("%s has changed since the run began; what it says now is used.", file)
    return load_config([str(record)], overrides)


def _score(args: argparse.Namespace, overrides: list[str]) -> int:
    if args.run is not None:
        if args.reward is not None:
            raise ConfigError("--reward goes with --input. A run has its own; change it with key=value.")
        from assay.cli.rescore import OUTPUT, rescore

        output = args.output or args.run / OUTPUT
        print(json.dumps(rescore(args.run, _config_of(args.run, overrides), output), indent=2))
        return 0
    if args.reward is None:
        raise ConfigError(
            "--input needs to know what to score with: --reward judge, monitor, path.py:name or module:name."
        )
    from assay.cli.score_file import score_file
    from assay.config.sources import read_overrides
    from assay.integrations.common.settings import read_settings

    given = {**read_overrides(overrides).values, "reward": args.reward}
    output = args.output or args.input.with_suffix(".scores.jsonl")
    print(json.dumps(score_file(args.input, output, read_settings(given)), indent=2))
    return 0


def _grade(args: argparse.Namespace, overrides: list[str]) -> int:
    from assay.cli.grade import describe, grade_file
    from assay.config.sources import read_overrides

    given = dict(read_overrides(overrides).values)
    if args.backend is not None:
        given["backend"] = args.backend
    if args.no_cache:
        given["cache"] = "false"
    problem, verdict = grade_file(args.problem, args.kernel, given)
    if args.json:
        print(json.dumps({"name": problem.name, "key": problem.key, **verdict.to_json()}))
    else:
        print(describe(problem, verdict))
    return 0 if verdict.ok else NOT_OK


def _config(args: argparse.Namespace, overrides: list[str]) -> int:
    from assay.config import resolved
    from assay.training.config import load_config

    print(json.dumps(resolved(load_config(args.config, overrides)), indent=2))
    return 0


def _demo(args: argparse.Namespace, overrides: list[str]) -> int:
    from assay.cli.demo import main as demo

    return demo(overrides)


_COMMANDS: Mapping[str, Callable[[argparse.Namespace, list[str]], int]] = {
    "train": _train,
    "eval": _eval,
    "score": _score,
    "grade": _grade,
    "config": _config,
    "demo": _demo,
}
