"""Finds the code that a setting names: `name`, `package.module:Name` or `path/to/file.py:Name`.

A short name stands for one of Assay's own, through a table of references; the table holds text and imports nothing.
A file is loaded once per content, as a module of its own. What cannot be found ends in one error that says what was
looked for, where, and what stands there.
"""

from __future__ import annotations

import ast
import difflib
import functools
import hashlib
import importlib
import inspect
import linecache
import math
import re
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from assay.errors import AssayError, ConfigError
from assay.syntax import parsed

_PREFIX = "assay_file_"
_FILES: dict[str, Path] = {}
"""Name of a module that was loaded from a file -> that file."""
_WRITTEN: dict[type, str] = {}
"""Class that a reference led to -> that reference: its file may have the class from elsewhere."""
_LOADING = threading.RLock()
_NOT_THEIRS = tuple(
    {
        str(Path(__file__).parent),
        *(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    }
)
"""Folders of code that is not a user's own."""
MOST_CHARACTERS = 400
"""Of what an error says of itself, in a message."""


@dataclass(frozen=True)
class Kind:
    """What a setting may name."""

    noun: str
    """In words: `dataset builder`."""
    known: Mapping[str, str] = field(default_factory=dict)
    """Short name -> reference."""
    fits: Callable[[object], bool] = lambda found: True
    """Whether an object is of this kind; for `Name`s of files and modules, and for what else stands there."""
    form: str = ""
    """What such an object is, in words: `a class over assay.envs.DatasetBuilder`."""
    weighted: bool = False
    """Whether a reference may end in a weight: `rewards.py:correct*0.5`."""

    def canonical(self, reference: str) -> str:
        """The reference as a record keeps it: short names as they are, files by their absolute path."""
        if self.weighted and (bare := split_weight(reference)[0]) != reference:
            return self.canonical(bare) + reference[len(bare) :]
        place, colon, name = _split(reference)
        if reference in self.known or not colon or not place.endswith(".py"):
            return reference
        return f"{Path(place).expanduser().resolve()}:{name}"

    def recorded(self, value: str | Sequence[str]) -> str | list[str]:
        """What a setting that names code, or several pieces of it, is in a record. See `canonical`."""
        return self.canonical(value) if isinstance(value, str) else [self.canonical(reference) for reference in value]


def find(reference: str, kind: Kind, setting: str) -> Any:
    """The object that `reference` leads to.

    Args:
        reference: as written by the user.
        kind: what it may be.
        setting: the key that holds it, for messages.

    Raises:
        ConfigError: it does not exist, its file raises, or it is of another kind.
        ModuleNotFoundError: one of Assay's own needs a package that is not installed.
    """
    said = f"{setting}={reference}"
    place, colon, name = _split(kind.known.get(reference, reference))
    if not colon:
        raise ConfigError(f"{said}: {_no_name(reference, kind)}")
    module = _load_file(place, said, kind) if place.endswith(".py") else _import(place, said, kind)
    where = str(_FILES.get(module.__name__, place))
    found: Any = module
    for part in name.split("."):
        if isinstance(found, Mapping) and part in found:  # a row of a table
            found = found[part]
            continue
        if not hasattr(found, part):
            raise ConfigError(f"{said}: looked for the {kind.noun} {name!r} in {where}. {_there(module, kind)}")
        found = getattr(found, part)
    if not kind.fits(found):
        what = f"a class ({name})" if inspect.isclass(found) else f"a {type(found).__name__}"
        wanted = f"a {kind.noun} ({kind.form})" if kind.form else f"a {kind.noun}"
        raise ConfigError(f"{said}: looked for {wanted} in {where}, and {name} is {what}. {_there(module, kind)}")
    if inspect.isclass(found) and reference not in kind.known:
        _WRITTEN[found] = kind.canonical(reference)
    return found


def reference_to(found: Any, kind: Kind) -> str:
    """The reference that leads to a class or function again: its short name, or its file or module and its name."""
    module, name = found.__module__, found.__qualname__
    script = getattr(sys.modules.get("__main__"), "__file__", None) if module == "__main__" else None
    place = str(Path(script).resolve() if script else _FILES.get(module, module))
    reference = _WRITTEN.get(found, f"{place}:{name}") if inspect.isclass(found) else f"{place}:{name}"
    return next((short for short, known in kind.known.items() if known == f"{module}:{name}"), reference)


def split_weight(reference: str) -> tuple[str, float]:
    """A reference and the weight behind it: `math*0.5` is `math`, 0.5; without one, 1.

    Raises:
        ConfigError: what follows the last `*` is not a finite number.
    """
    bare, star, weight = reference.rpartition("*")
    if not star:
        return reference, 1.0
    try:
        number = float(weight)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ConfigError(f"{reference!r}: the weight {weight!r} is not a finite number: NAME*0.5.")
    return bare.strip(), number


def source_file(reference: str, kind: Kind) -> Path | None:
    """The file behind a reference outside Assay, once it was loaded; None for short names and for what has no file."""
    if kind.weighted:
        reference = split_weight(reference)[0]
    place, colon, _ = _split(reference)
    if reference in kind.known or not colon:
        return None
    if place.endswith(".py"):
        return Path(place).expanduser().resolve()
    origin = getattr(sys.modules.get(place), "__file__", None)
    return Path(origin) if origin else None


def source_files(reference: str, kind: Kind) -> list[Path]:
    """The file behind a reference outside Assay and those of its own folder (of its package's, in a package) that it
    imports, and they import: all that decides what the code does and is not installed. Empty for short names.
    """
    first = source_file(reference, kind)
    if first is None:
        return []
    place, _, _ = _split(reference)
    folder = first.parent if place.endswith(".py") else first.parents[_depth(place, first)]
    found = [first]
    for path in found:
        found += [near for near in dict.fromkeys(_imported(path, folder)) if near not in found]
    return [first, *sorted(found[1:])]


def _depth(module: str, path: Path) -> int:
    """How many folders above a module's file its top package stands."""
    return module.count(".") + (path.name == "__init__.py")


def _imported(path: Path, folder: Path) -> Iterator[Path]:
    """The files below `folder` that a file imports, anywhere in its text."""
    try:
        statements = _import_statements(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return  # what loads it says what is wrong with it
    names: list[str] = []
    for node in statements:
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        else:
            above = path.parents[node.level - 1].relative_to(folder).parts if _inside(path, node.level, folder) else ()
            base = ".".join([*above, *([node.module] if node.module else [])])
            names += [base, *(f"{base}.{alias.name}" if base else alias.name for alias in node.names)]
    split = [name.split(".") for name in dict.fromkeys(names) if name]
    for begun in dict.fromkeys(tuple(parts[:end]) for parts in split for end in range(1, len(parts) + 1)):
        module = folder.joinpath(*begun)
        yield from (file for file in (module.with_suffix(".py"), module / "__init__.py") if file.is_file())


@functools.lru_cache(maxsize=256)
def _import_statements(source: bytes) -> tuple[ast.Import | ast.ImportFrom, ...]:
    """Parsed once per content: a run asks for the files behind its settings several times."""
    return tuple(node for node in ast.walk(parsed(source)) if isinstance(node, ast.Import | ast.ImportFrom))


def _inside(path: Path, level: int, folder: Path) -> bool:
    """Whether a relative import of this level stays below `folder`."""
    return 0 < level <= len(path.parents) and path.parents[level - 1].is_relative_to(folder)


@contextmanager
def calling(said: str) -> Iterator[None]:
    """What the user's own code raises, as one line.

    Args:
        said: what is called, for the message: `LargestDigit.tasks()`.

    Raises:
        ConfigError: it raised; the message has the error and the line of the user's file that raised it.
        AssayError: as it raises that itself.
    """
    try:
        yield
    except AssayError:
        raise
    except Exception as error:
        raise ConfigError(f"{said} raised {in_words(error)}.") from error


def in_words(error: BaseException) -> str:
    """An error on one line: `KeyError: 'x' (own_env.py, line 12)`, with the innermost line outside Assay and what is
    installed, where there is one."""
    said = str(error) if isinstance(error, AssayError) else traceback.format_exception_only(error)[-1]
    said = " ".join(said.split()).rstrip(".")
    if len(said) > MOST_CHARACTERS:
        said = f"{said[:MOST_CHARACTERS]}..."
    return f"{said}{place_of(error)}"


def place_of(error: BaseException) -> str:
    """The innermost line of a user's own code that an error came from, ` (FILE, line N)`; empty where there is none."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not f.filename.startswith((*_NOT_THEIRS, "<"))]
    return f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""


def digest(path: Path) -> str:
    """SHA-256 (hex) of a file; empty where it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""


def signature(found: object) -> str:
    """How something is called, for messages; `(...)` where Python cannot tell."""
    try:
        return str(inspect.signature(found))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return "(...)"


def _split(reference: str) -> tuple[str, str, str]:
    """Place, colon and name; without a colon all of it is the place."""
    place, colon, name = reference.rpartition(":")
    return (place, colon, name) if colon and place and name else (reference, "", "")


def _no_name(reference: str, kind: Kind) -> str:
    """Message for a reference that is not a short name and has no `:Name`."""
    if reference.rstrip(":").endswith(".py"):
        path = reference.rstrip(":")
        return f"which {kind.noun} of that file? Put its name after a colon: {path}:Name."
    swapped = [name for name in kind.known if sorted(name) == sorted(reference)]  # gpro for grpo
    near = swapped or difflib.get_close_matches(reference, kind.known, n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    names = f"a {kind.noun} of this name among {', '.join(kind.known)}" if kind.known else f"a {kind.noun}"
    return f"looked for {names}.{hint} One of your own is written package.module:Name or path/to/file.py:Name."


def _there(module: ModuleType, kind: Kind) -> str:
    """What of the kind a module holds, in words."""
    own = [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and _home(value, module.__name__) == module.__name__
    ]
    fitting = [name for name in own if kind.fits(vars(module)[name])]
    listed = fitting or [name for name in own if not isinstance(vars(module)[name], ModuleType)]
    if not listed:
        return "It defines nothing."
    if not fitting:
        return f"Nothing in it is one ({', '.join(listed[:10])}{', ...' if len(listed) > 10 else ''})."
    return f"It has {', '.join(listed[:10])}{', ...' if len(listed) > 10 else ''}."


def _home(value: object, module: str) -> str:
    """Name of the module that defines what `module` holds; what is neither class nor function is its own."""
    if inspect.isclass(value) or inspect.isroutine(value):
        return str(getattr(value, "__module__", module))
    return module


def _import(place: str, said: str, kind: Kind) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:  # a console script does not look there, `python -m` does
        sys.path.append(here)
        importlib.invalidate_caches()
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if place == missing or place.startswith(f"{missing}."):
            raise ConfigError(
                f"{said}: looked for a {kind.noun} in the module {place}, which is not installed here. Install "
                "it, put its folder in PYTHONPATH, or give its file: path/to/file.py:Name."
            ) from error
        if place.startswith("assay."):
            raise  # one of ours lacks an optional package, which the command line names with its cure
        raise _raised(f"the module {place}", error, said, kind) from error
    except (Exception, SystemExit) as error:
        if place.startswith("assay."):
            raise
        raise _raised(f"the module {place}", error, said, kind) from error


def _load_file(place: str, said: str, kind: Kind) -> ModuleType:
    """The module in a file, loaded once per content. Its folder is put at the end of the import path."""
    path = Path(place).expanduser().resolve()
    try:
        source = path.read_bytes()
    except OSError as error:
        beside = sorted(p.name for p in path.parent.glob("*.py")) if path.parent.is_dir() else []
        there = f"That folder has {', '.join(beside[:10])}." if beside else "There is no Python file in that folder."
        text = f"looked for a {kind.noun} in {path}, which is not a file that can be read. {there}"
        raise ConfigError(f"{said}: {text}") from error
    hashes = hashlib.sha256(str(path).encode()).hexdigest()[:8], hashlib.sha256(source).hexdigest()[:8]
    name = f"{_PREFIX}{re.sub(r'[^0-9A-Za-z_]', '_', path.stem)}_{'_'.join(hashes)}"
    with _LOADING:
        if name not in sys.modules:
            _execute(name, path, source, said, kind)
        return sys.modules[name]


def _execute(name: str, path: Path, source: bytes, said: str, kind: Kind) -> None:
    """Run the source that was read, and no bytecode that an earlier version of the file may have left."""
    module = ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name], _FILES[name] = module, path
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    linecache.checkcache(str(path))
    try:
        exec(compile(source, str(path), "exec", dont_inherit=True), module.__dict__)
    except BaseException as error:
        del sys.modules[name], _FILES[name]
        if isinstance(error, Exception | SystemExit):
            raise _raised(str(path), error, said, kind) from error
        raise


def _raised(where: str, error: BaseException, said: str, kind: Kind) -> ConfigError:
    """The error for code that raises when it is loaded, with the line of `where` that led to it."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == where]
    if isinstance(error, SyntaxError) and error.filename == where:
        lines = [error.lineno]
    line = f"line {lines[-1]}: " if lines and lines[-1] else ""
    text = " ".join(traceback.format_exception_only(error)[-1].split())
    return ConfigError(f"{said}: looked for a {kind.noun} in {where}, which raises when it is loaded: {line}{text}")
