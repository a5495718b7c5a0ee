"""`assay settings`: what can be set, with type, default and meaning; below a key, or by words."""

from __future__ import annotations

import argparse
import difflib
import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from assay.cli.options import add_config, columns
from assay.errors import ConfigError

ROOTS: Mapping[str, str] = {
    "train": "assay.training.config:TrainingConfig",
    "eval": "assay.training.endpoint.config:EvaluationConfig",
    "score": "assay.integrations.common.settings:HostConfig",
    "grade": "assay.cli.tasks.grade:GradeConfig",
    "grade-server": "assay.server.grading.config:GradeServerConfig",
}
"""Command -> the class that its settings are below; the first one's are looked at first."""


Wanted = Callable[[str, Any], bool]
"""Whether a setting is one of those asked for, by its key and what is known of it."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument(
        "asked",
        nargs="*",
        metavar="KEY|WORD",
        help="a key (all below it), or words to search for (default: the groups)",
    )
    add_config(parser)
    parser.add_argument(
        "--of",
        choices=tuple(ROOTS),
        help="whose settings: of a run (train, score --run), of eval, of score --input, of grade or grade-server "
        "(default: a run's, and those of the others where a run has none such)",
    )
    parser.epilog = """\
  assay settings                                  the groups of settings
  assay settings optimizer                        all below a key
  assay settings endpoint                         those of `assay eval` for endpoints
  assay settings kl                               all whose key or meaning has a word
  assay settings dataset_builder --config chess   of the environment that a preset names
  assay settings dataset_builder dataset_builder=mine.py:Mine   of one of your own
"""


def run(args: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Print them."""
    from assay.config.help import below, matches, named

    first, *others = [args.of] if args.of else ROOTS
    root = _root(first)
    chosen = _chosen(root, args.config, overrides)
    if not args.asked:
        print(_groups(root, chosen))
        return 0
    asked = [word.rstrip(".*") or word for word in args.asked]
    keys = [below(asked[0]), named(asked[0])] if len(asked) == 1 else []
    for wanted in filter(None, (keys, [matches(asked)])):
        if text := _first(root, wanted, chosen):
            print(text)
            return 0
        for other in () if args.config or overrides else others:
            if text := _first(_root(other), wanted):
                print(f"Of `assay {other}`, not of a run:\n\n{text}")
                return 0
    raise ConfigError(_nothing(root, asked, chosen))


def _first(root: type, wanted: Sequence[Wanted], chosen: Mapping[str, type | None] | None = None) -> str:
    """The first listing that is not empty; empty where all are."""
    from assay.config.help import listing

    return next(filter(None, (listing(root, columns(), each, chosen) for each in wanted)), "")


def _root(command: str) -> type:
    module, _, name = ROOTS[command].partition(":")
    found: type = getattr(import_module(module), name)
    return found


def _chosen(root: type, configs: Sequence[str], overrides: Sequence[str]) -> Mapping[str, type | None]:
    """The classes that presets, files and `key=value` choose.

    Raises:
        ConfigError: no such preset, file or class; or a `key=value` that chooses none.
    """
    from assay.config.loader import Draft
    from assay.config.sources import read_overrides, read_source

    written = read_overrides(overrides)
    draft: Draft[object] = Draft(root, [*map(read_source, configs), written])
    for key in written.values:
        if key.removesuffix(".type") not in draft.classes:
            raise ConfigError(
                f"{key} has no effect on which settings there are. `assay settings` takes key=value for what names a "
                "class, such as dataset_builder=mine.py:Mine."
            )
    return draft.classes


def _groups(root: type, chosen: Mapping[str, type | None]) -> str:
    """A line for each group of settings, and the names of those in none."""
    from assay.config.help import nodes
    from assay.config.schema import settings
    from assay.config.values import node_class

    own = [name for name, setting in settings(root).items() if node_class(setting.annotation) is None]
    lines = [
        "settings by themselves:",
        *textwrap.wrap(", ".join(own), columns(), initial_indent="  ", subsequent_indent="  "),
    ]
    lines += ["", "groups of settings:"]
    for node in nodes(root, chosen):
        if node.key and node.cls is not None:
            name = f"{node.key}={node.choice}" if node.choice else node.key
            about = (inspect.getdoc(node.cls) or "").partition("\n")[0]
            lines.append(f"  {name}  ({len(settings(node.cls))} settings)\n      {about}")
    lines += [f"  {name}  (as {s.like})\n      {s.doc}" for name, s in settings(root).items() if s.like is not None]
    lines += ["", "`assay settings KEY` shows what is below a key; `assay settings WORD ...` searches."]
    return "\n".join(lines)


def _nothing(root: type, asked: Sequence[str], chosen: Mapping[str, type | None]) -> str:
    from assay.config.help import nodes
    from assay.config.schema import settings

    keys = {
        f"{node.key}.{name}" if node.key else name
        for node in nodes(root, chosen)
        if node.cls is not None
        for name in settings(node.cls)
    }
    near = difflib.get_close_matches(".".join(asked), sorted(keys), n=3, cutoff=0.5)
    near += [key for key in sorted(keys) if difflib.get_close_matches(asked[-1], [key.rpartition(".")[2]], cutoff=0.75)]
    hint = f" Did you mean {' or '.join(list(dict.fromkeys(near))[:3])}?" if near else ""
    words = " and ".join(map(repr, asked))
    return f"No setting has {words} in its key or meaning.{hint} `assay settings` lists the groups."
