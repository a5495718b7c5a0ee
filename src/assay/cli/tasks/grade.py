"""`assay grade`: one kernel from a file against one problem, and the verdict in words."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import chz

from assay.cli.options import listed
from assay.config import Layer, UsedWhen, build
from assay.config.sources import COMMAND_LINE, read_overrides
from assay.errors import ConfigError, DataError
from assay.kernels.config import GraderConfig
from assay.kernels.pool import grade_many, require_grader
from assay.kernels.problems.sources import DatasetSource, Problem, find_problem, load_problems, read_problem_file
from assay.kernels.source_text import read_kernel_file
from assay.kernels.verdicts import Verdict
from assay.terminal import inert
from assay.types import Json

NOT_OK = 3
"""Exit status for any verdict but `ok`: 1 and 2 say that nothing was graded."""
MAX_KERNEL_BYTES = 20_000_000
"""A larger file is not read; the grader refuses sources far below that."""


@chz.chz
class GradeConfig(GraderConfig):
    """How a candidate is graded, and where `level/id` is looked up."""

    dataset_src: DatasetSource = "shipped"
    """`shipped`, `huggingface`, `local` (a checkout of KernelBench), `jsonl` or `corpus` (another data set)."""
    problems_path: Annotated[str | None, UsedWhen("dataset_src", "local", "jsonl", "corpus")] = None
    """The checkout (`local`; KERNELBENCH_ROOT or the usual places when null), the file (`jsonl`), or the data set
    (`corpus`)."""
    revision: Annotated[str | None, UsedWhen("dataset_src", "huggingface")] = None
    """Commit or tag of the data set (`huggingface`)."""


LOOKED_UP = ("dataset_src", "problems_path", "revision")
"""Settings that say where `level/id` is looked up."""

_EPILOG = """\
problems:
  assay grade --list                              the problems that Assay ships
  assay grade --list --level 2 dataset_src=local  those of a KernelBench checkout
  assay grade --show 1/1                          a problem's text
  assay grade --starter 1/1 --output kernel.py    a kernel to begin with

settings (key=value; --settings lists all of them):
  dataset_src=shipped     where level/id is looked up: shipped, huggingface, local, jsonl, corpus (problems_path=FILE)
  num_correct_trials=6    calls that must be right
  policy=strict           partial lets PyTorch's heavy operators stand beside kernels
  compile_check=right     which kernels are compiled for a GPU as well: right, all, off
  device=cpu              Triton's interpreter; cuda runs kernels on a GPU
  sandbox=strict          unsafe runs untrusted code without walls
  url=http://HOST:8177    grade at a grading service (`assay grade-server`)

exit status:
  0  the verdict is `ok`
  1  nothing was graded: a file, a problem, a package or a feature of this machine is missing
  2  nothing was graded: an option or a setting is wrong, device=cuda without a GPU among them
  3  any other verdict
"""

_NOT_TOGETHER = {
    "level": ("list",),
    "output": ("starter",),
    "kernel": ("problem",),
    "no_cache": ("problem",),
    "json": ("problem", "list"),
}
"""Option -> those beside which it means something."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--problem", metavar="FILE|level/id", help="grade a kernel for this problem")
    what.add_argument("--list", action="store_true", help="list the problems: level/id, name, description")
    what.add_argument("--show", metavar="FILE|level/id", help="print a problem's text")
    what.add_argument("--starter", metavar="FILE|level/id", help="print a kernel to begin with")
    what.add_argument("--settings", action="store_true", help="list every setting")
    parser.add_argument("--kernel", metavar="FILE", help="the kernel: a module with ModelNew; - for stdin")
    parser.add_argument("--backend", choices=("triton", "cuda"), help="its language (default: triton)")
    parser.add_argument("--json", action="store_true", help="print the whole verdict, or the list, as JSON")
    parser.add_argument("--no-cache", action="store_true", help="ignore cached verdicts, and do not cache this one")
    parser.add_argument(
        "--level", type=int, action="append", metavar="N", help="with --list: this level (may be repeated)"
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="with --starter: write it to this file")
    parser.epilog = _EPILOG


def run(args: argparse.Namespace, overrides: Sequence[str]) -> int:
    """List, show, or grade: then print the verdict, and say in the exit status whether it is `ok`."""
    _refuse_strays(args)
    given = dict(read_overrides(overrides).values)
    if listed(args.settings, given, GradeConfig):
        return 0
    if args.backend is not None:
        given["backend"] = args.backend
    config = read_grading(given, {"cache": "false"} if args.no_cache else {})
    _refuse_idle(args, given)
    if not args.problem:
        print(_about_problems(args, config))
        return 0
    problem, verdict = grade_file(args.problem, args.kernel, config)
    if args.json:
        print(json.dumps({"name": problem.name, "key": problem.key, **verdict.to_json()}))
    else:
        print(describe(problem, verdict))
    return 0 if verdict.ok else NOT_OK


def _refuse_strays(args: argparse.Namespace) -> None:
    """Refuse options that would do nothing, and none at all."""
    if not (args.problem or args.list or args.show or args.starter or args.settings):
        lacking = "--problem, which is missing here" if args.kernel else "--problem and --kernel"
        raise ConfigError(
            f"grading needs {lacking}. `assay grade --list` shows the problems, `assay grade --starter 1/1 "
            "--output kernel.py` writes a kernel to begin with."
        )
    for option, beside in _NOT_TOGETHER.items():
        if getattr(args, option) and not any(getattr(args, other) for other in beside):
            words = " or ".join(f"--{other}" for other in beside)
            raise ConfigError(f"--{option.replace('_', '-')} goes with {words}. `assay grade --help` shows how.")
    if args.problem and args.kernel is None:
        raise ConfigError("--problem needs --kernel FILE, the kernel to grade (- for standard input).")


def _refuse_idle(args: argparse.Namespace, given: Mapping[str, Json]) -> None:
    """Refuse settings that would do nothing: where nothing is graded, or the problem is in a file."""
    looked_up = any(_is_number(name) for name in (args.problem, args.show, args.starter) if name) or args.list
    read = {*(LOOKED_UP if looked_up else ()), *(("backend",) if args.show or args.starter else ())}
    for key in given:
        if key in LOOKED_UP and key not in read:
            raise ConfigError(
                f"{key} would have no effect: the problem is in a file. Remove it, or give a problem as level/id."
            )
        if not args.problem and key not in read:
            raise ConfigError(f"{key} would have no effect: nothing is graded. Remove it, or give --problem.")


def _about_problems(args: argparse.Namespace, config: GradeConfig) -> str:
    from assay.cli.tasks import problems

    if args.list:
        found = load_problems(config.dataset_src, args.level, config.problems_path, config.revision)
        return problems.listing(found, args.json)
    name = args.show or args.starter
    problem = read_problem(name, config)
    if args.show:
        return problems.show(problem, name, config.backend)
    return problems.write_starter(problem, name, config.backend, args.output)


def grade_file(problem: str, kernel: str, config: GradeConfig) -> tuple[Problem, Verdict]:
    """Grade one kernel.

    Args:
        problem: A problem's file, or `level/id` in the source that `config` names.
        kernel: The kernel's file; `-` for standard input.
        config: How.

    Raises:
        MissingDependencyError: a package that grading needs is not installed.
        SandboxError: this machine cannot isolate untrusted code.
        GradingServiceError: the grading service at `config.url` cannot be used.
        DataError: a file that cannot be read, or no problem.
    """
    chosen: list[Problem] = []

    def candidate() -> Iterator[tuple[Problem, str]]:
        """Read once the pool stands: a machine that can grade nothing says so before it looks for files."""
        chosen.append(read_problem(problem, config))
        yield chosen[0], read_kernel(kernel)

    require_grader(config)
    [verdict] = grade_many(candidate(), config)
    return chosen[0], verdict


def read_grading(given: Mapping[str, Json], options: Mapping[str, Json] | None = None) -> GradeConfig:
    """The settings that `key=value` arguments give, below those that options stand for.

    Raises:
        ConfigError: unknown, or not of its type, or without effect.
    """
    layers = [Layer(COMMAND_LINE, dict(given)), Layer("options", dict(options or {}))]
    return build(GradeConfig, layers, unknown="`assay grade --settings` lists all settings.")


def read_problem(name: str, source: GradeConfig) -> Problem:
    """The problem that the command line names.

    Raises:
        DataError: there is none.
    """
    if _is_number(name):
        level, _, number = name.partition("/")
        found = load_problems(source.dataset_src, (int(level),), source.problems_path, source.revision)
        return find_problem(found, int(level), int(number))
    if name.isdecimal() and not Path(name).exists():
        raise DataError(f"{name} is neither a problem's file nor level/number. Give both, as in --problem 1/{name}.")
    try:
        return read_problem_file(Path(name))
    except DataError as error:
        if Path(name).exists():
            raise
        raise DataError(f"{error} A problem is a file, or level/id such as 1/2 (`assay grade --list`).") from error


def _is_number(name: str) -> bool:
    """Whether a problem is named by `level/id`."""
    level, slash, number = name.partition("/")
    return bool(slash) and level.isdigit() and number.isdigit() and not Path(name).exists()


def read_kernel(name: str) -> str:
    """The module in a kernel's file. Markdown around it is removed, with a message on standard error.

    Bytes that are not UTF-8 are kept in a form that no parser accepts.

    Raises:
        DataError: it cannot be read, or is far too long to be a kernel.
    """
    try:
        if name == "-":
            data = sys.stdin.buffer.read(MAX_KERNEL_BYTES + 1)
        else:
            with Path(name).open("rb") as file:
                data = file.read(MAX_KERNEL_BYTES + 1)
    except OSError as error:
        raise DataError(f"cannot read the kernel {name}: {error.strerror}. Check the path.") from error
    if len(data) > MAX_KERNEL_BYTES:
        raise DataError(f"{name} has more than {MAX_KERNEL_BYTES:,} bytes, so it is not a kernel. Check the path.")
    found = read_kernel_file(data.decode("utf-8", "surrogateescape"))
    if found.told:
        print(f"{'standard input' if name == '-' else name}: {found.told}", file=sys.stderr)
    return found.code


def describe(problem: Problem, verdict: Verdict) -> str:
    """The verdict in words, for a terminal."""
    head = f"{verdict.kind}{f' ({verdict.cheat})' if verdict.cheat else ''}: problem {problem.key} {problem.name}"
    lines = [head]
    if verdict.message:
        lines += textwrap.wrap(verdict.message, 110, initial_indent="  ", subsequent_indent="  ")
    facts = [f"decided at {verdict.stage}"]
    if verdict.tests_total:
        facts.append(f"{verdict.tests_passed} of {verdict.tests_total} calls right")
    if verdict.compiled is not None:
        facts.append("compiled for a GPU" if verdict.compiled else "not compiled for a GPU")
    scaling = verdict.evidence.get("scaling")
    if isinstance(scaling, Mapping) and scaling.get("changes"):
        facts.append(f"sizes scaled down (cap {scaling['cap']})")
    if verdict.timing is not None:
        facts.append(_speed(verdict.timing))
    facts.append("from the cache" if verdict.cached else f"{verdict.cpu_s:.2f} CPU seconds")
    return inert("\n".join([*lines, "  " + "; ".join(facts)]))


def _speed(timing: Mapping[str, Json]) -> str:
    """A timing in words."""
    bounds = f"{timing['lower']:.3g} to {timing['upper']:.3g}"
    times = f"{timing['candidate_ms']:.4g} ms against {timing['baseline_ms']:.4g} ms"
    return f"{timing['speedup']:.3g} times as fast as {timing['baseline']} ({bounds}; {times} on {timing['device']})"
