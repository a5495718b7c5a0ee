"""The command line: find the command, parse, call. Only the module of the command that is given loads.

An `AssayError` is printed as its message and becomes the exit status; any other exception is a bug and keeps its
traceback.
"""

from __future__ import annotations

import argparse
import difflib
import io
import logging
import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import NoReturn

from assay.errors import AssayError, ConfigError, pip_install
from assay.presets import presets
from assay.terminal import inert
from assay.training.logs import StderrHandler


@dataclass(frozen=True)
class Command:
    """One command: where its code is, and what it does in one line.

    Its module has `arguments(parser)`, which adds its options, and `run(args, overrides) -> int`, which does the work,
    given the `key=value` arguments as they were written, and returns the exit status.
    """

    module: str
    summary: str


COMMANDS: Mapping[str, Command] = {
    "train": Command("assay.cli.runs.train", "train a model; the same command resumes an interrupted run"),
    "eval": Command("assay.cli.runs.eval", "measure a checkpoint of a run, an endpoint, or a folder of kernels"),
    "show": Command("assay.cli.runs.show", "print the prompts, answers and rewards of a run"),
    "report": Command("assay.cli.runs.report", "write a run's report.html again, also while the run is in progress"),
    "view": Command("assay.cli.runs.view", "read a run's rollouts in a browser; two runs side by side"),
    "compare": Command("assay.cli.runs.compare", "compare two evaluations task by task: is the gain noise?"),
    "export": Command(
        "assay.cli.runs.export", "write a checkpoint of a run as a Hugging Face folder, or the right kernels of a run"
    ),
    "score": Command("assay.cli.tasks.score", "judge completions: those of a run again, or any file of them"),
    "grade": Command(
        "assay.cli.tasks.grade", "grade a kernel against a KernelBench problem; exit status 0 for ok, 3 for not"
    ),
    "grade-server": Command(
        "assay.cli.tasks.grade_server", "grade kernels for other machines, as an HTTP service with a key"
    ),
    "export-data": Command("assay.cli.tasks.export_data", "write an environment's tasks as the data sets of verl"),
    "export-env": Command("assay.cli.tasks.export_env", "write an environment as a plugin of verifiers and prime-rl"),
    "serve": Command(
        "assay.cli.tasks.serve", "serve a model to training programs that speak Tinker's protocol, many at a time"
    ),
    "index": Command("assay.cli.tasks.index", "build an index of solved problems to show in prompts, or search one"),
    "init": Command("assay.cli.tasks.init", "write a file to start an environment or a reward from"),
    "check": Command("assay.cli.tasks.check", "play known answers through an environment; say what is wrong"),
    "doctor": Command("assay.cli.doctor", "look for what this machine, or one run, lacks, and say what to do"),
    "config": Command("assay.cli.config", "print the whole config that a command would use, as JSON"),
    "settings": Command("assay.cli.settings", "show what can be set: below a key, or by words"),
    "demo": Command("assay.cli.demo.command", "train a small chess model on this machine, in minutes, and report"),
}

EXTRAS = {
    "torch": "torch",
    "transformers": "torch",
    "tokenizers": "torch",
    "safetensors": "torch",
    "peft": "torch",
    "chess": "chess",
    "tensorboardX": "tensorboard",
    "wandb": "wandb",
    "httptools": "rewards",
    "starlette": "serve",
    "uvicorn": "serve",
    "tinker": "tinker",
    "math_verify": "math",
    "ray": "verl",
    "triton": "kernelbench",
    "bm25s": "retrieval",
    "faiss": "embeddings",
    "sentence_transformers": "embeddings",
    "modal": "modal",
}
"""Optional package -> the extra of this distribution that installs it."""

_OVERRIDE = re.compile(r"(--)?([A-Za-z_][\w.-]*)=")

_OVERVIEW = """\
Reinforcement learning for language models from verifiable rewards.

  assay demo                                      train a small chess model here, in minutes, and report
  assay train --config chess --dry-run            say what a run would do
  assay train --config chess learning_rate=3e-4   train; the same command resumes after an interruption
  assay eval --run runs/chess                     measure a run's last checkpoint on held-out tasks
  assay show runs/chess                           print the answers of its last step, with rewards and evidence
  assay view runs/chess                           read its rollouts in a browser
  assay score --run runs/chess                    judge a run's saved rollouts again, also with other rewards
  assay grade --problem 1/1 --kernel kernel.py    grade an untrusted GPU kernel, in a sandbox
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    _print_anything()
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
        cure = pip_install(EXTRAS[package])
        return _fail(f"{package} is not installed, and this command needs it: {cure}.", 1)
    except KeyboardInterrupt:
        again = shlex.join([*_program(), *arguments])
        print(
            f"\nInterrupted. What is done is kept; it goes on when the same command is given: {again}",
            file=sys.stderr,
        )
        return 130
    except BrokenPipeError:  # the reader of our output (`| head`) has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _program() -> list[str]:
    """The words that start this program in a shell, also where the shell would not find it by its name."""
    started = Path(sys.argv[0])
    if started.name == "__main__.py":
        return [sys.executable, "-m", "assay"]
    by_path = started.name == "assay" and shutil.which("assay") is None
    return [sys.argv[0] if by_path else "assay"]


def _print_anything() -> None:
    """Let a terminal whose encoding lacks a character show its number; an answer may hold any."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _fail(message: str, status: int) -> int:
    print(f"error: {inert(message)}", file=sys.stderr)
    return status


def _run(arguments: list[str]) -> int:
    place = next((i for i, a in enumerate(arguments) if not a.startswith("-") and not _OVERRIDE.match(a)), None)
    if place is None:
        _overview().parse_args([a for a in arguments if not _OVERRIDE.match(a)])
        _overview().print_help()
        return 0
    name, rest = arguments[place], [*arguments[:place], *arguments[place + 1 :]]
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"Did you mean {near[0]}? " if near else ""
        _overview().error(f"{name!r} is not a command. {hint}The commands are {', '.join(COMMANDS)}.")
    module = import_module(COMMANDS[name].module)
    parser = _parser(name)
    module.arguments(parser)
    overrides = [a for a in rest if _is_override(a, parser)]
    args, unknown = parser.parse_known_args([a for a in rest if not _is_override(a, parser)])
    if unknown:
        # A command with settings of its own lists them by an option; `assay settings` lists those of training.
        listing = f"assay {name} --settings" if "--settings" in parser.format_help() else "assay settings"
        raise ConfigError(
            f"{unknown[0]!r} is not an option of `assay {name}`: `assay {name} --help` lists its options. Settings are "
            f"written key=value; `{listing}` lists them."
        )
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[StderrHandler()])
    logging.getLogger("assay").setLevel(logging.INFO)
    status: int = module.run(args, overrides)
    return status


def _is_override(argument: str, parser: argparse.ArgumentParser) -> bool:
    """Whether an argument is `key=value` or `--key=value`, and not an option of the command given with `=`."""
    match = _OVERRIDE.match(argument)
    return match is not None and not (match[1] and f"--{match[2]}" in parser._option_string_actions)


class _Overview(argparse.ArgumentParser):
    """The parser of `assay` by itself."""

    def error(self, message: str) -> NoReturn:
        """Print one line and leave."""
        print(f"error: {message}", file=sys.stderr)
        raise SystemExit(2)


def _overview() -> argparse.ArgumentParser:
    commands = "\n".join(f"  {name:12}  {command.summary}" for name, command in COMMANDS.items())
    listed = "\n".join(f"  {name:12}  {text}" for name, text in presets().items())
    parser = _Overview(
        prog="assay",
        usage="assay COMMAND [options] [key=value ...]",
        description=f"{_OVERVIEW}\ncommands:\n{commands}\n\npresets:\n{listed}",
        epilog="`assay COMMAND --help` shows a command's options.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"assay {version('assay-rl')}")
    return parser


def _parser(name: str) -> argparse.ArgumentParser:
    summary = COMMANDS[name].summary
    return argparse.ArgumentParser(
        prog=f"assay {name}",
        description=f"{summary[0].upper()}{summary[1:]}.",
        usage=f"assay {name} [options] [key=value ...]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        conflict_handler="resolve",  # a command may have a fuller --help
    )
