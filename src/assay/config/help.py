"""Every setting below a root class in words: for `--help` and for the generated reference."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator
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


def nodes(root: type) -> Iterator[Node]:
    """Every config class below a root with its key, parents first; where there is a choice, each of ours.

    A key that takes what another one takes (`multiturn_dataset_builder`) is left out.
    """
    yield from _nodes("", root, "")


def _nodes(key: str, cls: type, choice: str) -> Iterator[Node]:
    yield Node(key, cls, choice)
    for name, setting in settings(cls).items():
        base = node_class(setting.annotation)
        if base is None or setting.like is not None:
            continue
        inner = f"{key}.{name}" if key else name
        if setting.code is None:
            yield from _nodes(inner, base, "")
            continue
        for short in setting.code.kind.known:
            try:
                found = plugins.find(short, setting.code.kind, inner)
            except ModuleNotFoundError as error:
                yield Node(inner, None, short, error.name or "")
            else:
                yield from _nodes(inner, found, short)


def listing(root: type, width: int) -> str:
    """Every setting below `root` with its default, type and meaning, for a terminal of `width` columns."""
    parts = ["settings (key=default), in dot notation on the command line, nested or dotted in YAML:"]
    for node in nodes(root):
        if node.cls is None:
            parts.append(
                f"\n{node.key}={node.choice}: its settings cannot be listed, since {node.missing} is not installed."
            )
            continue
        heading = f"{node.key}={node.choice or node.cls.__name__}" if node.key else node.cls.__name__
        parts.append(f"\n{heading}: {inspect.getdoc(node.cls)}")
        for name, setting in settings(node.cls).items():
            dotted = f"{node.key}.{name}" if node.key else name
            default = "" if node_class(setting.annotation) else f"={shown(setting.default)}"
            text = f"{setting.doc} ({type_words(setting)})"
            parts.append(f"  {dotted}{default}")
            parts.append(textwrap.fill(text, width, initial_indent=" " * 6, subsequent_indent=" " * 6))
    return "\n".join(parts)


def type_words(setting: Setting) -> str:
    """A setting's type in words, with its bounds; for what names code, the names there are."""
    if setting.code is not None:
        own = "module:Name or file.py:Name"
        return f"one of {', '.join(choices_of(setting) or setting.code.kind.known)}, or {own}"
    if is_choice(setting):
        return "one of " + ", ".join(choices_of(setting))
    bounds = "".join(f", {bound.words}" for bound in setting.bounds)
    return f"{type_name(setting.annotation)}{bounds}"
