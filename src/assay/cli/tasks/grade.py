"""`assay grade`: one kernel from a file against one problem, and the verdict in words."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import chz

from assay.cli.options import add_settings_help
from assay.config import Layer, build
from assay.config.sources import COMMAND_LINE, read_overrides
from assay.errors import DataError
from assay.kernels.config import GraderConfig
from assay.kernels.pool import grade_many
from assay.kernels.problems.sources import DatasetSource, Problem, find_problem, load_problems, read_problem_file
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
    """`shipped`, `huggingface`, `local` (a checkout of KernelBench) or `jsonl`."""
    problems_path: str | None = None
    """The checkout (`local`; KERNELBENCH_ROOT or the usual places when null) or the file (`jsonl`)."""
    revision: str | None = None
    """Commit or tag of the data set (`huggingface`)."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument("--problem", required=True, metavar="FILE|level/id", help="a problem's file, or one by number")
    parser.add_argument(
        "--kernel", required=True, metavar="FILE", help="the kernel: a module with ModelNew; - for stdin"
    )
    parser.add_argument("--backend", choices=("triton", "cuda"), help="its language (default: triton)")
    parser.add_argument("--json", action="store_true", help="print the whole verdict as one JSON object")
    parser.add_argument("--no-cache", action="store_true", help="grade anew, and keep nothing")
    add_settings_help(parser, "assay.cli.tasks.grade:GradeConfig")


def run(args: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Grade, print the verdict, and say in the exit status whether it is `ok`."""
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


def grade_file(problem: str, kernel: str, given: Mapping[str, Json]) -> tuple[Problem, Verdict]:
    """Grade one kernel.

    Args:
        problem: A problem's file, or `level/id` in the source that `given` names.
        kernel: The kernel's file; `-` for standard input.
        given: Settings of `GradeConfig` (those of its nodes as `modal.NAME`, `timing.NAME`), as text.

    Raises:
        ConfigError: a setting that does not exist or cannot be.  DataError: a file that cannot be read, or no problem.
        SandboxError: this machine cannot isolate untrusted code.
    """
    config = read_grading(given)
    chosen = read_problem(problem, config)
    return chosen, grade_many([(chosen, read_kernel(kernel))], config)[0]


def read_grading(given: Mapping[str, Json]) -> GradeConfig:
    """The settings that `key=value` arguments give.

    Raises:
        ConfigError: unknown, or not of its type.
    """
    return build(GradeConfig, [Layer(COMMAND_LINE, dict(given))], unknown="`assay grade --help` lists all settings.")


def read_problem(name: str, source: GradeConfig) -> Problem:
    """The problem that the command line names.

    Raises:
        DataError: there is none.
    """
    level, slash, number = name.partition("/")
    if slash and level.isdigit() and number.isdigit() and not Path(name).exists():
        problems = load_problems(source.dataset_src, (int(level),), source.problems_path, source.revision)
        return find_problem(problems, int(level), int(number))
    return read_problem_file(Path(name))


def read_kernel(name: str) -> str:
    """The text of a kernel's file. Bytes that are no UTF-8 stay, as something that no parser takes.

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
        raise DataError(f"{name} has more than {MAX_KERNEL_BYTES:,} bytes, so it is no kernel. Check the path.")
    return data.decode("utf-8", "surrogateescape")


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
