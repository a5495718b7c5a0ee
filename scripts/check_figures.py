"""Says which figures of docs/results.md are older than the code they describe.

    python scripts/check_figures.py                           what is stale; status 1 where the page does not say so
    python scripts/check_figures.py --say                     write into the page which figures are stale
    python scripts/check_figures.py --stamp benchmarks/x.py   the figures of a benchmark were measured at HEAD

Above each figure or group of figures stands a mark, one line of Markdown that no reader sees:

    <!-- figure: benchmarks/x.py commit abc1234 sources: src/assay/grpo src/assay/backends -->

`commit` is the one at which the command was run, `sources` are the files and folders that decide its result; the
benchmark itself and what it imports of `benchmarks/` and `tests/` always count among them. Figures are stale where
these differ between that commit and HEAD. Comments, docstrings and the layout of Python files do not count. What
belongs to a mark ends at the next mark or heading.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PAGE = "docs/results.md"
PHRASE = "Measured before later changes to"
"""What stale figures must say, followed by what has changed."""
FOLDERS = ("benchmarks/", "tests/")
"""Where a benchmark's helpers are; both stand on the path of imports."""
_MARK = re.compile(r"^<!-- figure: (\S+) commit (\S+) sources: ([^>]*?) ?-->$", re.MULTILINE)
_ALMOST = re.compile(r"^<!-- *figure.*$", re.MULTILINE)
_END = re.compile(r"^(?:## |<!-- figure:)", re.MULTILINE)
_SAID = re.compile(rf"^{PHRASE} [^\n]*\n\n?", re.MULTILINE)


class NoHistoryError(Exception):
    """There is no git history to compare with: a wheel, an archive, a shallow clone."""


@dataclass(frozen=True)
class Figure:
    """A mark and the text that belongs to it."""

    benchmark: str
    commit: str
    sources: tuple[str, ...]
    text: str
    line: int


def figures(page: str) -> list[Figure]:
    """The marks of a page with what belongs to them.

    Raises:
        ValueError: a line begins like a mark and is none.
    """
    found = []
    for mark in _MARK.finditer(page):
        end = _END.search(page, mark.end())
        text = page[mark.end() : end.start() if end else len(page)]
        line = page.count("\n", 0, mark.start()) + 1
        found.append(Figure(mark[1], mark[2], tuple(mark[3].split()), text, line))
    for almost in _ALMOST.finditer(page):
        if _MARK.match(page, almost.start()) is None:
            raise ValueError(f"{almost[0]!r} is no mark: write <!-- figure: FILE commit HASH sources: PATH ... -->")
    return found


def git(root: Path, *words: str) -> bytes:
    """What a git command prints.

    Raises:
        NoHistoryError: git is not installed, or this is no repository of its own, or it is shallow.
        subprocess.CalledProcessError: git refuses.
    """
    if not (root / ".git").exists():
        raise NoHistoryError(f"{root} is not a git checkout")
    try:
        return subprocess.run(["git", "-C", str(root), *words], check=True, capture_output=True).stdout
    except FileNotFoundError:
        raise NoHistoryError("git is not installed") from None


def check_history(root: Path) -> None:
    """Refuse a checkout whose history is cut off.

    Raises:
        NoHistoryError: as said.
    """
    if git(root, "rev-parse", "--is-shallow-repository").strip() == b"true":
        raise NoHistoryError("the clone is shallow: git fetch --unshallow gets its history")


def changed(root: Path, figure: Figure) -> list[str]:
    """The sources of a figure that differ between its commit and HEAD, as they are named in the mark.

    Raises:
        ValueError: its commit is not in the history of HEAD, or a source did not and does not exist.
    """
    head = _head(root)
    return list(_changed(root, figure.commit, _sources(root, figure, head), head))


def _sources(root: Path, figure: Figure, head: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys((figure.benchmark, *helpers(root, figure.benchmark, head), *figure.sources)))


@cache
def helpers(root: Path, benchmark: str, head: str) -> tuple[str, ...]:
    """Files of `benchmarks/` and `tests/` that a benchmark imports, also by way of others, sorted."""
    there = set(git(root, "ls-tree", "-r", "--name-only", head, "--", *FOLDERS).decode().splitlines())
    found, unread = {benchmark}, [benchmark] if benchmark in there else []
    while unread:
        for module in _imported(git(root, "show", f"{head}:{unread.pop()}")):
            path = module.replace(".", "/")
            names = {f"{folder}{path}{end}" for folder in ("", *FOLDERS) for end in (".py", "/__init__.py")}
            new = (names & there) - found
            found |= new
            unread += new
    return tuple(sorted(found - {benchmark}))


def _imported(text: bytes) -> Iterator[str]:
    """Names that a Python file imports: of modules, and of what may be modules in them."""
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except SyntaxError:
        return
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _head(root: Path) -> str:
    return git(root, "rev-parse", "HEAD").decode().strip()


@cache
def _changed(root: Path, commit: str, sources: tuple[str, ...], head: str) -> tuple[str, ...]:
    try:
        git(root, "merge-base", "--is-ancestor", commit, head)
    except subprocess.CalledProcessError:
        raise ValueError(f"commit {commit} is not in the history of HEAD") from None
    found = []
    for source in sources:
        if not git(root, "ls-tree", "-r", "--name-only", head, "--", source).strip():
            raise ValueError(f"source {source} does not exist")
        names = git(root, "diff", "--name-only", "--no-renames", "-z", commit, head, "--", source).decode().split("\0")
        if any(_differs(root, commit, head, name) for name in names if name):
            found.append(source)
    return tuple(found)


def _differs(root: Path, commit: str, head: str, name: str) -> bool:
    """Whether a file differs in more than comments, docstrings and layout."""
    return not name.endswith(".py") or _code(root, commit, name) != _code(root, head, name)


@cache
def _code(root: Path, commit: str, name: str) -> str | None:
    """What a Python file does, as text: its tree without docstrings and positions; None where it does not exist."""
    try:
        text = git(root, "show", f"{commit}:{name}")
    except subprocess.CalledProcessError:
        return None
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return text.decode("utf-8", "replace")
    for node in ast.walk(tree):
        for field in ("body", "orelse", "finalbody"):
            lines = getattr(node, field, None)
            if isinstance(lines, list):
                setattr(node, field, [line for line in lines if not _is_text(line)])
    return ast.dump(tree)


def _is_text(line: ast.AST) -> bool:
    """Whether a statement is a docstring, or one right under a field."""
    return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant) and isinstance(line.value.value, str)


def unmarked(page: str) -> Iterator[str]:
    """Benchmarks whose command the page gives outside the text of a mark of theirs."""
    marks = figures(page)
    for benchmark in dict.fromkeys(re.findall(r"python\s+(benchmarks/\w+\.py)", page)):
        if benchmark not in {figure.benchmark for figure in marks}:
            yield benchmark


def problems(root: Path) -> Iterator[str]:
    """What the page does not say of its figures, one line each.

    Raises:
        NoHistoryError: there is nothing to compare with.
    """
    check_history(root)
    page = (root / PAGE).read_text(encoding="utf-8")
    try:
        marks = figures(page)
    except ValueError as error:
        yield f"{PAGE}: {error}"
        return
    for benchmark in unmarked(page):
        yield f"{PAGE} gives figures of {benchmark}, and no mark says at which commit they were measured."
    for figure in marks:
        place = f"{PAGE}, line {figure.line} ({figure.benchmark})"
        try:
            stale = changed(root, figure)
        except ValueError as error:
            yield f"{place}: {error}."
            continue
        says = PHRASE in figure.text
        if stale and not says:
            yield (
                f"{place}: {', '.join(stale)} changed since {figure.commit}, and the text does not say so. Measure "
                f"again and use --stamp {figure.benchmark}, or use --say."
            )
        if says and not stale:
            yield f"{place}: it says '{PHRASE} ...', and nothing changed since {figure.commit}. Use --say."


def said(root: Path, page: str) -> str:
    """The page with a sentence under the mark of each figure that is stale, and with none under the others."""
    for figure in figures(page):
        stale = changed(root, figure)
        listed = ", ".join(f"`{source}`" for source in stale)
        text = _SAID.sub("", figure.text)
        if stale:
            text = f"\n\n{PHRASE} {listed}.\n\n{text.lstrip()}"
        page = page.replace(figure.text, text, 1)
    return page


def stamped(page: str, benchmark: str, commit: str) -> str:
    """The page with all figures of a benchmark as measured at a commit.

    Raises:
        ValueError: it has none.
    """
    marks = [figure for figure in figures(page) if figure.benchmark == benchmark]
    if not marks:
        raise ValueError(f"{PAGE} has no mark of {benchmark}")
    for figure in marks:
        page = page.replace(figure.text, _SAID.sub("", figure.text), 1)
    start = f"<!-- figure: {benchmark} commit "
    return re.sub(rf"^{re.escape(start)}\S+", f"{start}{commit}", page, flags=re.MULTILINE)


def refuse_uncommitted(root: Path, page: str, benchmark: str) -> None:
    """Refuse to stamp figures that were measured with code that no commit has.

    Raises:
        ValueError: a source of theirs has changes that are not committed.
    """
    head = _head(root)
    for figure in figures(page):
        sources = _sources(root, figure, head) if figure.benchmark == benchmark else ()
        if sources and (lines := git(root, "status", "--porcelain", "--", *sources).decode().splitlines()):
            raise ValueError(
                f"{lines[0][3:]} has changes that are not committed, so HEAD is not what {benchmark} was measured "
                "with: commit them, measure, then stamp"
            )


def main(arguments: Sequence[str], root: Path) -> int:
    """Check, say, or stamp; see the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--stamp", action="append", default=[], metavar="BENCHMARK", help="its figures are those of HEAD")
    what.add_argument("--say", action="store_true", help="write into the page which figures are stale")
    args = parser.parse_args(arguments)
    try:
        check_history(root)
        page = (root / PAGE).read_text(encoding="utf-8")
        if args.say:
            page = said(root, page)
        for benchmark in args.stamp:
            refuse_uncommitted(root, page, benchmark)
            page = stamped(page, benchmark, _head(root)[:7])
        (root / PAGE).write_text(page, encoding="utf-8")
        stale = [
            f"{f.benchmark} ({f.commit}): {', '.join(found)}" for f in figures(page) if (found := changed(root, f))
        ]
        wrong = list(problems(root))
    except NoHistoryError as error:
        print(f"error: figures cannot be checked: {error}.", file=sys.stderr)
        return 2
    except ValueError as error:
        print(f"error: {error}.", file=sys.stderr)
        return 2
    print("\n".join(["stale:", *(f"  {line}" for line in stale)] if stale else ["No figure is stale."]))
    print("\n".join(wrong), end="\n" if wrong else "", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], Path(__file__).resolve().parents[1]))
