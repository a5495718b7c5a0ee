"""Which references of KernelBench run on this machine, as published and scaled down, and which are degenerate.

    python benchmarks/kernelbench_references.py [--data FILE] [--levels 1 2 3] [--published N] [--log FILE] [--table]

A reference *runs* when one evaluation, as grading makes it, ends within `--timeout` seconds and `--memory` MiB: weights
and one draw of inputs, a pass in float32, one in float64, one that counts operators. Scaled problems come from
`fit_problem`, which picks their sizes and screens them over every family of inputs. `--published N` runs N problems of
each level at their published sizes (a fixed random choice; 0 for none, -1 for all; this takes minutes). With `--log` an
interrupted run goes on where it stopped. Progress goes to standard error; `--table` writes Markdown tables there at the
end. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from assay.errors import ReferenceModelError
from assay.kernels.numerics.reference import (
    FittedProblem,
    ReferenceProcess,
    ReferenceResult,
    fit_problem,
)
from assay.kernels.numerics.tolerance import RELATIVE, rms
from assay.kernels.problems.sources import Problem, load_problems

DATA = Path(__file__).parents[2] / "shared" / "data" / "kernelbench.jsonl"
Row = dict[str, Any]


def scaled_row(problem: Problem, process: ReferenceProcess) -> Row:
    """What fitting one problem to this machine gave."""
    row: Row = {"key": problem.key, "name": problem.name, "mode": "scaled"}
    begin = time.monotonic()
    try:
        fitted = fit_problem(problem, process)
    except ReferenceModelError as error:
        return row | {"runs": False, "kind": error.kind, "message": str(error)[:300], "search_s": since(begin)}
    return row | {"runs": True, "search_s": since(begin)} | sizes(fitted) | cost(fitted.result)


def since(begin: float) -> float:
    return round(time.monotonic() - begin, 3)


def sizes(fitted: FittedProblem) -> Row:
    scaling, screening, result = fitted.scaled.scaling, fitted.screening, fitted.result
    given = result.cases[0]
    tolerances = given.tolerances(result.precision)
    floats = [(t, e) for t, e in zip(tolerances, given.exact, strict=True) if t.relative]
    return {
        "rule": scaling.rule,
        "cap": scaling.cap,
        "batch_cap": scaling.batch_cap,
        "reason": screening.reason,
        "detail": screening.detail,
        "constant_families": list(screening.constant_families),
        "dropped_families": list(screening.dropped_families),
        "refused": dict(result.refused),
        "exact": result.exact_dtype,
        "elements": sum(output.size for output in given.exact),
        # Above 1 where the reference's own error, and not the precision, decides what is allowed.
        "looseness": round(max((t.absolute / (RELATIVE["float32"] * rms(e) or 1) for t, e in floats), default=0), 3),
    }


def published_row(problem: Problem, process: ReferenceProcess) -> Row:
    """What running one problem at its published sizes gave."""
    row: Row = {"key": problem.key, "name": problem.name, "mode": "published"}
    begin = time.monotonic()
    try:
        result = process.evaluate(problem.code, input_seed=0, weight_seed=0, families=("given",))
    except ReferenceModelError as error:
        return row | {"runs": False, "kind": error.kind, "message": str(error)[:300], "search_s": since(begin)}
    return row | {"runs": True, "search_s": since(begin)} | cost(result)


def cost(result: ReferenceResult) -> Row:
    return {"seconds": round(result.seconds, 3), "peak_mb": round(result.peak_mb, 1), "parameters": result.parameters}


def chosen(problems: Sequence[Problem], number: int) -> list[Problem]:
    """A fixed random choice of so many problems of each level; all for a negative number."""
    if number < 0:
        return list(problems)
    found: list[Problem] = []
    for level in sorted({p.level for p in problems}):
        there = [p for p in problems if p.level == level]
        found += random.Random(level).sample(there, min(number, len(there)))
    return found


def rows(options: argparse.Namespace, problems: Sequence[Problem]) -> Iterator[Row]:
    """One row a problem and mode, those of the log first."""
    known: dict[tuple[str, str], Row] = {}
    if options.log and options.log.exists():
        known = {(r["mode"], r["key"]): r for r in map(json.loads, options.log.read_text().splitlines())}
    work = [("scaled", p) for p in problems] + [("published", p) for p in chosen(problems, options.published)]
    with ReferenceProcess(timeout_s=options.timeout, memory_mb=options.memory) as process:
        for number, (mode, problem) in enumerate(work, 1):
            row = known.get((mode, problem.key))
            if row is None:
                row = scaled_row(problem, process) if mode == "scaled" else published_row(problem, process)
                if options.log:
                    with options.log.open("a") as log:
                        log.write(json.dumps(row) + "\n")
            print(f"{number}/{len(work)} {mode} {problem.key} {problem.name}: {said(row)}", file=sys.stderr, flush=True)
            yield row


def said(row: Row) -> str:
    if not row["runs"]:
        return f"{row['kind']} after {row['search_s']} s"
    return f"{row['seconds']} s, {row['peak_mb']} MiB" + (f", refused: {row['reason']}" if row.get("reason") else "")


def summary(found: Iterable[Row]) -> dict[str, Any]:
    """Counts by level and mode."""
    by: dict[str, dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in found:
        by[row["key"].partition("/")[0]][row["mode"]].append(row)
    return {
        level: {mode: figures(part, mode) for mode, part in sorted(modes.items())}
        for level, modes in sorted(by.items())
    }


def figures(part: Sequence[Row], mode: str) -> dict[str, Any]:
    ran = [row for row in part if row["runs"]]
    failed: dict[str, list[str]] = defaultdict(list)
    for row in part:
        if not row["runs"]:
            failed[row["kind"]].append(row["key"])
    told: dict[str, Any] = {"problems": len(part), "run": len(ran), "failed": dict(sorted(failed.items()))}
    if ran:
        told["seconds"] = spread([row["seconds"] for row in ran])
        told["peak_mb"] = spread([row["peak_mb"] for row in ran])
    if mode == "scaled":
        reasons: dict[str, list[str]] = defaultdict(list)
        for row in ran:
            if row["reason"]:
                reasons[row["reason"]].append(row["key"])
        told["rewarded"] = sum(not row["reason"] for row in ran)
        told["refused"] = dict(sorted(reasons.items()))
        told["sizes"] = dict(Counter(f"{row['rule']} {row['cap']}".replace("none 0", "as published") for row in ran))
        told["search_s"] = round(sum(row["search_s"] for row in part), 1)
        told["without_float64"] = [row["key"] for row in ran if row["exact"] != "float64"]
        told["loose"] = {row["key"]: row["looseness"] for row in ran if row["looseness"] > 1.001}
    return told


def spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": round(statistics.median(values), 3), "high": round(max(values), 3)}


def tables(told: dict[str, Any], options: argparse.Namespace) -> str:
    """Markdown: what runs, and what is refused."""
    lines = [
        "| level | sizes | problems | run | failed | worth a reward | seconds, median / most | MiB, median / most |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for level, modes in told.items():
        for mode, part in modes.items():
            failed = ", ".join(f"{len(keys)} {kind}" for kind, keys in part["failed"].items()) or "none"
            time_s, memory = part.get("seconds"), part.get("peak_mb")
            lines.append(
                f"| {level} | {mode} | {part['problems']} | {part['run']} | {failed} | {part.get('rewarded', '')} | "
                + (f"{time_s['median']:.2f} / {time_s['high']:.2f}" if time_s else "")
                + " | "
                + (f"{memory['median']:.0f} / {memory['high']:.0f}" if memory else "")
                + " |"
            )
    lines += ["", "| level | refused because | problems |", "|---|---|---|"]
    for level, modes in told.items():
        for reason, keys in modes.get("scaled", {}).get("refused", {}).items():
            lines.append(f"| {level} | {reason.replace('_', ' ')} | {', '.join(keys)} |")
    lines += ["", "| level | sizes picked (rule and cap: problems) |", "|---|---|"]
    for level, modes in told.items():
        picked = Counter(modes.get("scaled", {}).get("sizes", {})).most_common()
        lines.append(f"| {level} | {', '.join(f'{size}: {count}' for size, count in picked)} |")
    lines += ["", f"Limits: {options.timeout:g} s and {options.memory} MiB for one evaluation, one thread."]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="the published problems, one JSON object a line")
    parser.add_argument("--levels", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--published", type=int, default=0, help="problems of each level to run as published")
    parser.add_argument("--timeout", type=float, default=10.0)
    parser.add_argument("--memory", type=int, default=4096)
    parser.add_argument("--log", type=Path, help="file of finished rows, read and continued")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if not options.data.exists():
        print(json.dumps({"skipped": "the published problems are not here; name their file with --data"}))
        return
    problems = load_problems("jsonl", options.levels, options.data)
    begin, load = time.monotonic(), os.getloadavg()[0]
    told = summary(rows(options, problems))
    if options.table:
        print(tables(told, options), file=sys.stderr)
    machine = {"cpus": os.cpu_count(), "processor": platform.machine(), "python": platform.python_version()}
    limits = {"timeout_s": options.timeout, "memory_mb": options.memory}
    timing = {"wall_s": round(time.monotonic() - begin, 1), "load_before": round(load, 2)}
    print(json.dumps({"levels": told, "limits": limits, "machine": machine, **timing}))


if __name__ == "__main__":
    main()
