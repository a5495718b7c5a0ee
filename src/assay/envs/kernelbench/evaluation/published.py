"""KernelBench's own run layout: kernels in files, and the results and baseline times that its scripts write.

    runs/NAME/level_1_problem_19_sample_0_kernel.py
    runs/NAME/eval_results.json                 {"19": [{"sample_id", "compiled", "correctness", "runtime", ...}]}
    results/timing/GPU/baseline_time_torch.json {"level1": {"19_ReLU.py": {"mean", ...}}}

Times are milliseconds. Results say what KernelBench's evaluation found, and nothing here checks it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from assay.envs.kernelbench.evaluation.outcomes import (
    MOST_SAMPLES,
    NO_KERNEL,
    KernelEvaluation,
    Outcome,
    ProblemOutcomes,
    Sample,
)
from assay.envs.kernelbench.rewards import MOST_SPEEDUP
from assay.errors import DataError
from assay.kernels.problems.sources import MAX_CODE_CHARACTERS, Problem
from assay.types import Json, TrajectoryGroup

RESULTS = "eval_results.json"
MOST_BYTES = 200_000_000
"""Of a file of results."""
MOST_FILES = 200_000
"""Kernels of a folder."""
_KERNEL = re.compile(r"level_(\d{1,6})_problem_(\d{1,9})_sample_(\d{1,6})_kernel\.py")
_ENTRY = {"sample_id": int, "compiled": bool, "correctness": bool}
Kernels = Mapping[tuple[int, int], Mapping[int, str]]
"""(level, problem) -> sample -> source."""


def nothing(samples: int) -> tuple[Sample, ...]:
    """What a problem without any kernel counts as, here as in KernelBench: as many failures as others have samples."""
    return ((Outcome(NO_KERNEL),),) * samples


def kernel_name(level: int, number: int, sample: int) -> str:
    """The file name of a kernel."""
    return f"level_{level}_problem_{number}_sample_{sample}_kernel.py"


def read_kernels(folder: Path) -> dict[tuple[int, int], dict[int, str]]:
    """All kernels of a run, by level, problem and sample.

    Raises:
        DataError: it holds no kernels, or one is no text of a sensible size.
    """
    found: dict[tuple[int, int], dict[int, str]] = {}
    count = 0
    for path in sorted(folder.iterdir()):
        if match := _KERNEL.fullmatch(path.name):
            count += 1
            if count > MOST_FILES:
                raise DataError(f"{folder} holds more than {MOST_FILES:,} kernels, which are not read. Split it.")
            level, number, sample = map(int, match.groups())
            found.setdefault((level, number), {})[sample] = _source(path)
    if not found:
        raise DataError(
            f"{folder} holds no kernels: there is no file like {kernel_name(1, 1, 0)}. Give the folder of a run of "
            "KernelBench, such as runs/NAME."
        )
    return found


def holds_kernels(folder: Path) -> bool:
    """Whether a folder has kernels in this layout."""
    return any(_KERNEL.fullmatch(path.name) for path in folder.iterdir())


def _source(path: Path) -> str:
    try:
        if path.stat().st_size > 4 * MAX_CODE_CHARACTERS:
            raise DataError(f"{path} has {path.stat().st_size:,} bytes, so it is no kernel. Remove it.")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text, so it is no kernel. Remove it.") from error


def kernels_of(groups: Sequence[TrajectoryGroup]) -> dict[str, str]:
    """The kernels of an evaluation's rollouts by their file names: of each rollout the first right one, or its last."""
    found = {}
    for group in groups:
        payload = group.task.payload
        for sample, rollout in enumerate(group.trajectories):
            told = [turn.score.evidence for turn in rollout.transitions if turn.score.evidence.get("kernel")]
            right = [one for one in told if (one.get("eval_result") or {}).get("correctness")]
            if told:
                name = kernel_name(payload["level"], payload["problem_id"], sample)
                found[name] = str((right[0] if right else told[-1])["kernel"])
    return found


def read_results(folder: Path, problems: Sequence[Problem], baselines: Mapping[str, Path]) -> KernelEvaluation:
    """What KernelBench's evaluation of a run found.

    Args:
        folder: of the run.
        problems: those that were posed, all of one level, since the file does not say which level it is of. One
            without a result counts as failed, as it does there.
        baselines: files of baseline times, by what was timed. Without the one of `eager`, the `ref_runtime` that
            newer results hold is taken where it is there.

    Raises:
        DataError: a file cannot be read, or is something else; or there are several levels.
    """
    levels = sorted({problem.level for problem in problems})
    if len(levels) != 1:
        raise DataError(
            f"{RESULTS} does not say which level it is of, and levels {', '.join(map(str, levels))} are chosen. Choose "
            "one with dataset_builder.level."
        )
    rows = _results(folder / RESULTS)
    if unknown := sorted(set(rows) - {str(problem.id) for problem in problems}):
        raise DataError(
            f"{folder / RESULTS} has problem {unknown[0]:.20}, which level {levels[0]} of the chosen problems has not. "
            "Choose the level and the problems that the run is of."
        )
    times = {name: _times(path, levels[0]) for name, path in baselines.items()}
    entries = [entry for found in rows.values() for entry in found]
    if "eager" not in times and any(_milliseconds(entry.get("ref_runtime")) for entry in entries):
        times["eager"] = {}
    most = max([1, *(len(found) for found in rows.values())])
    found = tuple(_problem(one, rows.get(str(one.id), []), times, most) for one in problems)
    return KernelEvaluation(found, tuple(times))


def _problem(
    problem: Problem, rows: Sequence[Mapping[str, Json]], times: Mapping[str, Mapping[int, float]], most: int
) -> ProblemOutcomes:
    baseline = {name: known[problem.id] for name, known in times.items() if problem.id in known}
    samples: tuple[Sample, ...] = tuple((_outcome(row, baseline),) for row in rows) or nothing(most)
    return ProblemOutcomes(problem.level, problem.id, problem.name, samples, hash=problem.hash)


def _outcome(row: Mapping[str, Json], baseline: Mapping[str, float]) -> Outcome:
    if not row["correctness"]:
        return Outcome("wrong" if row["compiled"] else "compile_error", row["compiled"])
    runtime, reference = _milliseconds(row.get("runtime")), _milliseconds(row.get("ref_runtime"))
    known = {**({"eager": reference} if reference else {}), **baseline}
    speedups = {name: ms / runtime for name, ms in known.items()} if runtime else {}
    return Outcome("ok", True, {name: value for name, value in speedups.items() if value <= MOST_SPEEDUP})


def _milliseconds(value: Json) -> float | None:
    """A time; None for anything else, such as the -1 of what was not timed."""
    known = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if known and 0 < value < 1e9 else None


def _results(path: Path) -> dict[str, list[dict[str, Json]]]:
    """Problem -> its results, ordered by sample. Older files hold one result in place of a list."""
    data = _object(path, "results of KernelBench (its scripts/eval_from_generations.py writes it)")
    found = {}
    for number, value in data.items():
        rows = value if isinstance(value, list) else [value]
        for row in rows:
            _check_entry(row, f"{path}, problem {number:.20}")
        samples = [row["sample_id"] for row in rows]
        if len(set(samples)) < len(samples) or len(samples) > MOST_SAMPLES:
            raise DataError(f"{path}, problem {number:.20}: a sample is there twice, or there are too many.")
        found[number] = sorted(rows, key=lambda row: row["sample_id"])
    return found


def _check_entry(row: Json, place: str) -> None:
    if not isinstance(row, dict):
        raise DataError(f"{place} is a {type(row).__name__}, not a result with {', '.join(_ENTRY)}.")
    for name, kind in _ENTRY.items():
        if type(row.get(name)) is not kind:
            has = ", ".join(row)[:300] or "nothing"
            raise DataError(f"{place} has no {name} that is a {kind.__name__}. It has {has}.")


def _times(path: Path, level: int) -> dict[int, float]:
    """Problem -> mean milliseconds of the baseline."""
    data = _object(path, "baseline times of KernelBench (results/timing/GPU/baseline_time_torch.json)")
    rows = data.get(f"level{level}")
    if not isinstance(rows, dict):
        raise DataError(f"{path} has no level{level}; it has {', '.join(data)[:200] or 'nothing'}.")
    found = {}
    for name, row in rows.items():
        match, mean = re.match(r"(\d{1,9})_", name), _milliseconds(row.get("mean") if isinstance(row, dict) else None)
        if match is None or mean is None:
            raise DataError(
                f"{path}, level{level}: {name!r:.80} has no number of a problem before it, or no mean time."
            )
        found[int(match[1])] = mean
    return found


def _object(path: Path, what: str) -> dict[str, Json]:
    data = read_json(path, what)
    if not isinstance(data, dict):
        raise DataError(f"{path} holds a {type(data).__name__}, not an object: give a file of {what}.")
    return data


def read_json(path: Path, what: str) -> Json:
    """What a JSON file of a sensible size holds.

    Args:
        path: of the file.
        what: it should be a file of, for messages.

    Raises:
        DataError: it cannot be read, or is no JSON.
    """
    try:
        if path.stat().st_size > MOST_BYTES:
            raise DataError(f"{path} has more than {MOST_BYTES:,} bytes, and is not read.")
        return json.loads(path.read_bytes())
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}): give a file of {what}.") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not valid JSON ({error}).") from error
