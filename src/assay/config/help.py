"""Descriptions of the settings below a root class: for `assay settings`, for `--help` and for the generated
reference."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from assay import plugins
from assay.config.loader import choices_of, is_choice
from assay.config.schema import Setting, settings
from assay.config.values import node_class, shown, type_name


@dataclass(frozen=True)
class Node:
    """A config class and the key that it stands at; `missing` names the package without which it cannot be loaded."""

    key: str
    cls: type | None
    choice: str = ""
    missing: str = ""


def nodes(root: type, chosen: Mapping[str, type | None] | None = None) -> Iterator[Node]:
    """Every config class below a root with its key, parents first; where there is a choice, each of ours.

    A key that takes what another one takes (`multiturn_dataset_builder`) is left out.

    Args:
        chosen: classes that were chosen, by key; there, that one alone.
    """
    yield from _nodes("", root, "", chosen or {})


def _nodes(key: str, cls: type, choice: str, chosen: Mapping[str, type | None]) -> Iterator[Node]:
    yield Node(key, cls, choice)
    for name, setting in settings(cls).items():
        base = node_class(setting.annotation)
        if base is None or setting.like is not None:
            continue
        inner = f"{key}.{name}" if key else name
        if setting.code is None:
            yield from _nodes(inner, base, "", chosen)
            continue
        if (one := chosen.get(inner)) is not None:
            yield from _nodes(inner, one, plugins.reference_to(one, setting.code.kind), chosen)
            continue
        for short in setting.code.kind.known:
            try:
                found = plugins.find(short, setting.code.kind, inner)
            except ModuleNotFoundError as error:
                yield Node(inner, None, short, error.name or "")
            else:
                yield from _nodes(inner, found, short, chosen)


HEADING = "settings (key=default), in dot notation on the command line, nested or dotted in YAML:"


def listing(
    root: type,
    width: int,
    asked: Callable[[str, Setting], bool] = lambda key, setting: True,
    chosen: Mapping[str, type | None] | None = None,
) -> str:
    """The settings below `root` that are `asked` for, each with its default, type and meaning.

    Args:
        width: columns of the terminal.
        chosen: as for `nodes`.

    Returns:
        The text; empty where nothing is asked for.
    """
    parts = []
    for node in nodes(root, chosen):
        if node.cls is None:
            if asked(node.key, Setting("", None, "")):
                missing = f"its settings cannot be listed, since {node.missing} is not installed."
                parts.append(f"\n{node.key}={node.choice}: {missing}")
            continue
        keys = {f"{node.key}.{name}" if node.key else name: s for name, s in settings(node.cls).items()}
        found = [line for key, s in keys.items() if asked(key, s) for line in _entry(key, s, width)]
        if found:
            heading = f"{node.key}={node.choice or node.cls.__name__}" if node.key else node.cls.__name__
            parts += [f"\n{heading}: {inspect.getdoc(node.cls)}", *found]
    return "\n".join([HEADING, *parts]) if parts else ""


def brief(root: type, keys: Sequence[str], width: int) -> str:
    """Some settings by key, each with its default and the first sentence about it."""
    lines = []
    for key in keys:
        *path, name = key.split(".")
        cls: type = root
        for part in path:
            found = node_class(settings(cls)[part].annotation)
            assert found is not None, key
            cls = found
        setting = settings(cls)[name]
        sentence = re.split(r"(?<=\.)\s", setting.doc, maxsplit=1)[0]
        lines.append(f"  {key}{_default(setting)}")
        lines.append(textwrap.fill(sentence, width, initial_indent=" " * 6, subsequent_indent=" " * 6))
    return "\n".join(lines)


def matches(words: Sequence[str]) -> Callable[[str, Setting], bool]:
    """Whether a setting has all of some words, at the beginning of a part of its key or of a word of its meaning."""
    patterns = [re.compile(rf"(?:^|[^a-z0-9]){re.escape(word.lower())}") for word in words]
    return lambda key, setting: all(pattern.search(f"{key} {setting.doc}".lower()) for pattern in patterns)


def below(prefix: str) -> Callable[[str, Setting], bool]:
    """Whether a setting stands at a key or below it."""
    return lambda key, setting: f"{key}.".startswith(f"{prefix}.")


def named(name: str) -> Callable[[str, Setting], bool]:
    """Whether a setting has this name, wherever it stands."""
    return lambda key, setting: key.rpartition(".")[2] == name


def _entry(key: str, setting: Setting, width: int) -> Iterator[str]:
    yield f"  {key}{_default(setting)}"
    text = f"{setting.doc} ({type_words(setting)})".lstrip()
    yield textwrap.fill(text, width, initial_indent=" " * 6, subsequent_indent=" " * 6)


def _default(setting: Setting) -> str:
    if node_class(setting.annotation):
        return ""
    return f"={shown(setting.default)}" if setting.make_default is not None else "  (to be given)"


def type_words(setting: Setting) -> str:
    """A setting's type in words, with its bounds; for a setting that names code, the known names."""
    if setting.code is not None:
        own = "module:Name or file.py:Name"
        return f"one of {', '.join(choices_of(setting) or setting.code.kind.known)}, or {own}"
    if is_choice(setting):
        return "one of " + ", ".join(choices_of(setting))
    bounds = "".join(f", {bound.words}" for bound in setting.bounds)
    return f"{type_name(setting.annotation)}{bounds}"
