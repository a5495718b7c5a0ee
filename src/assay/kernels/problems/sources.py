"""Problems in the KernelBench format, from a data set, a checkout, a file, or those that Assay ships.

A problem is a Python module with a class `Model`, a function `get_inputs` (the arguments of `forward`) and a function
`get_init_inputs` (the arguments of the constructor). Nothing here runs that module: its text is parsed, checked and
hashed. The hash names what was solved, since published problems have changed under the same level and number.
"""

from __future__ import annotations

import ast
import hashlib
import itertools
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Literal

from assay.errors import ConfigError, DataError, MissingDependencyError, pip_install
from assay.kernels.problems.imported import read_modules
from assay.kernels.verdicts import plain_text
from assay.syntax import parsed
from assay.types import Json

DatasetSource = Literal["shipped", "huggingface", "local", "jsonl", "corpus"]
"""Where problems come from: inside Assay, the published data set, a checkout of KernelBench, a file of JSON lines, or
another published data set (`imported`)."""

SHIPPED = "shipped"
"""`Problem.source` of the problems that come with Assay, which are small as they are."""
HUGGINGFACE_NAME = "ScalingIntelligence/KernelBench"
HUGGINGFACE_LEVELS = (1, 2, 3, 4)
CORPUS_LEVEL = 1
"""Of all problems of data sets without levels."""
ROOT_VARIABLE = "KERNELBENCH_ROOT"
MAX_CODE_CHARACTERS = 200_000
"""A longer module is refused: the longest published problem has 23,170."""
MAX_LEVELS = 100
"""Of a module's syntax; published problems have 15 at most."""
MAX_INTEGERS = 1000
"""Of a module; published problems have 21 at most that are sizes."""

_FILE_NAME = re.compile(r"(\d+)_(.+)\.py")
_CHECKOUTS = (".", "KernelBench", "kernelbench", "src/kernelbench", "data")
_GUESSES = ("KernelBench", "../KernelBench", "~/KernelBench", "/workspace/KernelBench")
_WANTED = {"Model": ast.ClassDef, "get_inputs": ast.FunctionDef, "get_init_inputs": ast.FunctionDef}
MAX_NUMBER = 10**9
"""Of a level, or of a problem in it."""
_COLUMNS = {"code": str, "level": int, "name": str, "problem_id": int}


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem. `id` counts from 1 within its level; `source` says where the text came from."""

    level: int
    id: int
    name: str
    code: str
    source: str

    @property
    def hash(self) -> str:
        """SHA-256 (hex) of the module's text; line endings do not count."""
        return hashlib.sha256(self.code.encode()).hexdigest()

    @property
    def key(self) -> str:
        """`level/id`, as the command line writes it."""
        return f"{self.level}/{self.id}"


def make_problem(level: int, number: int, name: str, code: str, source: str) -> Problem:
    """A checked problem.

    Raises:
        DataError: `code` is not a module in the KernelBench format; `source` says where in the message.
    """
    code = code.replace("\r\n", "\n")
    fault = find_fault(code)
    if fault:
        raise DataError(
            f"{source}: problem {level}/{number} ({name}) {fault}. A problem is a Python module with a class Model and "
            "functions get_inputs and get_init_inputs. Correct the file, or choose other problems."
        )
    return Problem(level, number, name, code, source)


def find_fault(code: str) -> str | None:
    """What keeps `code` from being a problem's module, as the end of a sentence; None when nothing does."""
    if len(code) > MAX_CODE_CHARACTERS:
        return f"has {len(code)} characters; at most {MAX_CODE_CHARACTERS} are read"
    try:
        tree = parsed(code)
    except SyntaxError as error:
        return f"is not valid Python (line {error.lineno}: {error.msg})"
    except (ValueError, RecursionError, MemoryError) as error:
        return f"is not valid Python ({error})"
    found = {node.name: type(node) for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    if (fault := _too_much(tree)) is not None:
        return fault
    missing = [name for name, kind in _WANTED.items() if found.get(name) is not kind]
    return f"does not define {', '.join(missing)} at module level" if missing else None


def _too_much(tree: ast.Module) -> str | None:
    """What of a module is more than a grader reads: whoever looks for sizes in it descends into it, again and again."""
    integers = 0
    waiting: list[tuple[ast.AST, int]] = [(tree, 1)]
    while waiting:
        node, level = waiting.pop()
        if level > MAX_LEVELS:
            line = getattr(node, "lineno", 0)
            return f"is nested deeper than {MAX_LEVELS} levels" + (f" (line {line})" if line else "")
        integers += isinstance(node, ast.Constant) and type(node.value) is int
        waiting += [(child, level + 1) for child in ast.iter_child_nodes(node)]
    return f"has {integers} integers; at most {MAX_INTEGERS} are read" if integers > MAX_INTEGERS else None


def load_problems(
    dataset_src: DatasetSource = "shipped",
    levels: Sequence[int] | None = (1,),
    path: str | Path | None = None,
    revision: str | None = None,
) -> tuple[Problem, ...]:
    """The problems of some levels, ordered by level and number.

    Args:
        dataset_src: Where they come from.
        levels: Levels wanted, each of which must have problems; None for all that are there.
        path: The checkout (`local`; found by itself when None), the file (`jsonl`), or the data set (`corpus`).
        revision: Commit or tag of the data set (`huggingface`). Name one for results that others can repeat.

    Raises:
        ConfigError: unknown source, no level, a path where none is used or none where one is needed.
        DataError: nothing there, damaged, or without one of the levels.
        MissingDependencyError: `huggingface` without the package `datasets`.
    """
    if isinstance(levels, int):
        raise ConfigError(f"levels={levels!r} is one number, and several may be asked for. Write levels=({levels!r},).")
    if levels is not None and not levels:
        raise ConfigError("no level was asked for, so there is no problem to load. Name at least one, such as (1,).")
    if path is not None and dataset_src in ("shipped", "huggingface"):
        raise ConfigError(
            f"a path ({path}) was given, but dataset_src={dataset_src} does not read one. Remove it, or use local."
        )
    if revision is not None and dataset_src != "huggingface":
        raise ConfigError(f"revision={revision} is only for dataset_src=huggingface, not {dataset_src}.")
    there: Iterable[int]
    match dataset_src:
        case "shipped":
            there = shipped_levels()
            problems = read_shipped(levels or there)
        case "huggingface":
            there = HUGGINGFACE_LEVELS
            problems = read_huggingface(levels or there, revision)
        case "local":
            root = find_checkout() if path is None else Path(path)
            there = _level_folders(root)
            problems = read_checkout(root, levels or sorted(there))
        case "jsonl":
            if path is None:
                raise ConfigError("dataset_src=jsonl needs the path of the file: problems_path (from Python: path).")
            rows = read_jsonl(Path(path))
            there = {p.level for p in rows}
            problems = [p for p in rows if p.level in (levels or there)]
        case "corpus":
            if path is None:
                raise ConfigError(
                    "dataset_src=corpus needs the name or the file of a data set: problems_path (from Python: path)."
                )
            there = (CORPUS_LEVEL,)
            modules = read_modules(Path(path), find_fault)
            problems = [
                Problem(CORPUS_LEVEL, i, m.name, m.code, f"corpus:{m.source}") for i, m in enumerate(modules, start=1)
            ]
        case _:
            raise ConfigError(
                f"dataset_src={dataset_src!r} is unknown. Use shipped, huggingface, local, jsonl or corpus."
            )
    if missing := sorted(set(levels or ()) - {p.level for p in problems}):
        raise DataError(
            f"dataset_src={dataset_src} has no problem of level {', '.join(map(str, missing))}. "
            f"Its levels are {_ranges(list(there))}."
        )
    return _in_order(problems)


def _in_order(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    ordered = sorted(problems, key=lambda p: (p.level, p.id))
    for before, after in itertools.pairwise(ordered):
        if before.key == after.key:
            raise DataError(
                f"problem {after.key} appears twice ({before.source}: {before.name}; {after.source}: {after.name}), so "
                "its level and number are ambiguous. Remove one."
            )
    return tuple(ordered)


def find_problem(problems: Iterable[Problem], level: int, number: int) -> Problem:
    """The problem with this level and number.

    Raises:
        DataError: there is none.
    """
    problems = tuple(problems)
    for problem in problems:
        if (problem.level, problem.id) == (level, number):
            return problem
    there = [p.id for p in problems if p.level == level]
    have = f"level {level} has {_ranges(there)}" if there else f"there are no problems of level {level}"
    raise DataError(f"problem {level}/{number} does not exist: {have}.")


def _ranges(numbers: Sequence[int]) -> str:
    """`1-3, 7` for 1, 2, 3, 7."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in parts)


def read_problem_file(path: Path, level: int = 0, number: int = 0) -> Problem:
    """A problem from a file of its own. Level and number come from a path like `level1/19_ReLU.py` where it has them.

    Raises:
        DataError: the file cannot be read or is not a problem.
    """
    match = _FILE_NAME.fullmatch(path.name)
    folder = re.fullmatch(r"level_?(\d+)", path.parent.name)
    level = int(folder[1]) if folder and not level else level
    number = int(match[1]) if match and not number else number
    return make_problem(level, number, path.stem, _read_text(path), str(path))


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(f"cannot read the problem file {path}: {error.strerror}. Check the path.") from error
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} is not UTF-8 text ({error.reason} at byte {error.start}), so it is not a problem."
        ) from error


def _shipped_folders() -> dict[int, Traversable]:
    folders = resources.files("assay.kernels.problems").joinpath("shipped").iterdir()
    return {int(folder.name.removeprefix("level")): folder for folder in folders if folder.name.startswith("level")}


def shipped_levels() -> tuple[int, ...]:
    """The levels of the problems that come with Assay."""
    return tuple(sorted(_shipped_folders()))


def read_shipped(levels: Sequence[int] = (1, 2, 3)) -> list[Problem]:
    """The problems that come with Assay: small enough for Triton's interpreter on one core."""
    return [
        make_problem(level, int(match[1]), file.name.removesuffix(".py"), file.read_text(encoding="utf-8"), SHIPPED)
        for level, folder in _shipped_folders().items()
        if level in levels
        for file in folder.iterdir()
        if (match := _FILE_NAME.fullmatch(file.name))
    ]


def find_checkout(environ: Mapping[str, str] = os.environ, here: Path | None = None) -> Path:
    """The root of a KernelBench checkout: KERNELBENCH_ROOT, or a folder KernelBench here, beside or at home.

    Raises:
        DataError: KERNELBENCH_ROOT is not a checkout, or it is not set and no checkout was found.
    """
    named = environ.get(ROOT_VARIABLE)
    if named:
        return Path(named).expanduser()
    here = Path.cwd() if here is None else here
    guesses = [here / Path(guess).expanduser() for guess in _GUESSES]
    for guess in guesses:
        if _level_folders(guess):
            return guess
    raise DataError(
        f"no checkout of KernelBench was found ({ROOT_VARIABLE} is not set; looked at {', '.join(map(str, guesses))}). "
        f"Set {ROOT_VARIABLE}, or use dataset_src=huggingface or dataset_src=shipped."
    )


def _level_folders(root: Path) -> dict[int, Path]:
    """Level -> folder, for the first of the known layouts that `root` has."""
    for base in _CHECKOUTS:
        folder = root / base
        found = {}
        for name in folder.iterdir() if folder.is_dir() else ():
            match = re.fullmatch(r"level_?(\d+)", name.name)
            if match and name.is_dir():
                found[int(match[1])] = name
        if found:
            return found
    return {}


def read_checkout(root: Path, levels: Sequence[int]) -> list[Problem]:
    """The problems of some levels in a checkout, with `level1/1_Name.py` below it.

    Raises:
        DataError: no such layout, or a damaged file.
    """
    folders = _level_folders(root)
    if not folders:
        raise DataError(
            f"{root} is not a checkout of KernelBench: it has no folder like KernelBench/level1. "
            f"Check {ROOT_VARIABLE}, or use dataset_src=huggingface."
        )
    files = (file for level in levels if level in folders for file in sorted(folders[level].iterdir()))
    return [read_problem_file(file) for file in files if _FILE_NAME.fullmatch(file.name)]


def read_jsonl(path: Path) -> list[Problem]:
    """All problems of a file with one JSON object a line, with the published columns.

    Raises:
        DataError: the file is missing or damaged; the message names the line.
    """
    lines = _read_text(path).split("\n")
    problems = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(
                f"{path}, line {number}: not JSON ({getattr(error, 'msg', error)}). Correct or remove the line."
            ) from error
        problems.append(_from_row(row, f"{path}, line {number}"))
    if not problems:
        raise DataError(f"{path} has no problem in it. Check the path.")
    return problems


def _from_row(row: Json, where: str) -> Problem:
    if not isinstance(row, Mapping):
        raise DataError(f"{where}: a row is an object with {', '.join(_COLUMNS)}, not a {type(row).__name__}.")
    for column, kind in _COLUMNS.items():
        value = row.get(column)
        if type(value) is not kind or (isinstance(value, int) and not 0 <= value <= MAX_NUMBER):
            wanted = f"a whole number from 0 to {MAX_NUMBER}" if kind is int else "text"
            raise DataError(
                f"{where}: column {column!r} must be {wanted}, not {value!r:.80}. "
                f"The published columns are {', '.join(_COLUMNS)}."
            )
    name = " ".join(plain_text(row["name"]).split())
    return make_problem(row["level"], row["problem_id"], name, row["code"], where)


def read_huggingface(levels: Sequence[int], revision: str | None = None) -> list[Problem]:
    """The problems of some levels in the published data set (splits `level_1` and so on).

    Raises:
        MissingDependencyError: the package `datasets` is not installed.
        DataError: the data set cannot be fetched, or its rows are not problems.
    """
    try:
        import datasets
    except ImportError as error:
        raise MissingDependencyError(
            "dataset_src=huggingface reads the problems with the package `datasets`, which is not installed: "
            f"{pip_install('data')}, or use dataset_src=shipped, local or jsonl."
        ) from error
    source = f"huggingface:{HUGGINGFACE_NAME}@{revision or 'main'}"
    problems: list[Problem] = []
    for level in levels:
        try:
            rows: Iterator[Json] = iter(
                datasets.load_dataset(HUGGINGFACE_NAME, split=f"level_{level}", revision=revision)
            )
        except (OSError, ValueError) as error:
            raise DataError(
                f"cannot read level {level} of {source}: {error}. "
                "Check the network and the level, or use dataset_src=local or jsonl."
            ) from error
        problems += [_from_row(row, f"{source}, level {level}, row {n}") for n, row in enumerate(rows)]
    return problems
