"""`assay grade`: one kernel from a file against one problem, and the verdict in words."""

from __future__ import annotations

import difflib
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import get_args

import chz

from assay.config.schema import Setting, node_class, parse, settings, type_name
from assay.errors import ConfigError, DataError
from assay.kernels.config import GraderConfig
from assay.kernels.pool import grade_many
from assay.kernels.problems.sources import DatasetSource, Problem, find_problem, load_problems, read_problem_file
from assay.kernels.verdicts import Verdict
from assay.types import Json

MAX_KERNEL_BYTES = 20_000_000
"""A larger file is not read; the grader refuses sources far below that."""


@chz.chz
class ProblemSource:
    """Where `level/id` is looked up."""

    dataset_src: DatasetSource = "shipped"
    """`shipped`, `huggingface`, `local` (a checkout of KernelBench) or `jsonl`."""
    problems_path: str | None = None
    """The checkout (`local`; KERNELBENCH_ROOT or the usual places when null) or the file (`jsonl`)."""
    revision: str | None = None
    """Commit or tag of the data set (`huggingface`)."""

    @chz.validate
    def _known(self) -> None:
        if self.dataset_src not in get_args(DatasetSource):
            raise ConfigError(f"dataset_src={self.dataset_src!r} is none of {', '.join(get_args(DatasetSource))}.")


NODES: tuple[tuple[str, type], ...] = (("", GraderConfig), ("", ProblemSource))
"""Where the settings of `assay grade` stand: dotted key, config class."""


def grade_file(problem: str, kernel: str, given: Mapping[str, Json]) -> tuple[Problem, Verdict]:
    """Grade one kernel.

    Args:
        problem: A problem's file, or `level/id` in the source that `given` names.
        kernel: The kernel's file; `-` for standard input.
        given: Settings of `GraderConfig` (those of its nodes as `modal.NAME`, `timing.NAME`) and of `ProblemSource`, as
            text.

    Raises:
        ConfigError: a setting that does not exist or cannot be.  DataError: a file that cannot be read, or no problem.
        SandboxError: this machine cannot isolate untrusted code.
    """
    config, source = read_grading(given)
    chosen = read_problem(problem, source)
    return chosen, grade_many([(chosen, read_kernel(kernel))], config)[0]


def read_grading(given: Mapping[str, Json]) -> tuple[GraderConfig, ProblemSource]:
    """The settings that `key=value` arguments give.

    Raises:
        ConfigError: unknown, or not of its type.
    """
    values: dict[tuple[type, str], dict[str, Json]] = {(GraderConfig, ""): {}, (ProblemSource, ""): {}}
    known: dict[str, tuple[tuple[type, str], Setting]] = {}
    for node in (GraderConfig, ProblemSource):
        for name, setting in settings(node).items():
            if (inner := node_class(setting.annotation)) is None:
                known[name] = (node, ""), setting
                continue
            values[inner, name] = {}
            known |= {f"{name}.{leaf}": ((inner, name), found) for leaf, found in settings(inner).items()}
    for key, value in given.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"Did you mean {near[0]}?" if near else f"Settings: {', '.join(known)}."
            raise ConfigError(f"{key}: there is no such setting of `assay grade`, so it would have no effect. {hint}")
        place, setting = known[key]
        try:
            values[place][setting.name] = parse(value, setting.annotation)
        except ValueError as error:
            raise ConfigError(f"{key}={value!r}: expected {type_name(setting.annotation)}.") from error
    nodes = {name: node(**found) for (node, name), found in values.items() if name}
    return GraderConfig(**values[GraderConfig, ""], **nodes), ProblemSource(**values[ProblemSource, ""])


def read_problem(name: str, source: ProblemSource) -> Problem:
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
    return "\n".join([*lines, "  " + "; ".join(facts)])


def _speed(timing: Mapping[str, Json]) -> str:
    """A timing in words."""
    bounds = f"{timing['lower']:.3g} to {timing['upper']:.3g}"
    times = f"{timing['candidate_ms']:.4g} ms against {timing['baseline_ms']:.4g} ms"
    return f"{timing['speedup']:.3g} times as fast as {timing['baseline']} ({bounds}; {times} on {timing['device']})"
