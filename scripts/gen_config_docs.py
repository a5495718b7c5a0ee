"""Write docs/config.md from the config classes, or with --check say whether it is current (exit status 1 when not)."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

from assay.config.help import Node, nodes, type_words
from assay.config.schema import Setting, settings
from assay.config.values import node_class, shown
from assay.presets import presets
from assay.training.config import TrainingConfig

PAGE = Path(__file__).resolve().parents[1] / "docs" / "config.md"

INTRODUCTION = """\
# Settings

This page is generated from the config classes by `make docs`; edit the docstrings there, not this page.

A run is described by one tree of settings. Each setting has a default; presets and YAML files change some of them, and
`key=value` arguments change some more. Later sources win:

    class defaults  <  environment variables  <  --config (may be repeated)  <  key=value

    assay train --config chess --config my.yaml learning_rate=3e-4 dataset_builder.batch_size=8

Only the monitor environment reads environment variables, and [its page](monitor.md) lists them. `--config` takes the
name of a preset or the path of a YAML file. In YAML, keys may be nested or dotted. On the command
line `--key=value` means the same as `key=value`. `null` (or `none`) clears a setting that may be null. Lists are
written `a,b`. A setting of type "entries" takes one argument per entry: `loss_fn_config.clip_high_threshold=1.28`;
`loss_fn_config={}` drops the entries of earlier sources. Relative paths are taken from the working directory.

`dataset_builder` holds one of several classes. Choose one by name, `dataset_builder=chess` (in YAML also
`dataset_builder: {type: chess, ...}`), or one of your own, `dataset_builder=path/to/file.py:Name` or
`package.module:Name`, and set its own settings below it. When a later source chooses another class,
settings of the earlier class that the new one lacks are dropped, and a log line says so.
`multiturn_dataset_builder` takes what `dataset_builder` takes, and is of the same class unless it says otherwise
(beside `kernelbench`, of `kernelbench_turns`); its settings start from their own defaults, not from those of
`dataset_builder`.

A key that does not exist, a value of the wrong type and settings that cannot go together are refused before anything
runs. `assay config --config chess key=value` prints the whole resulting config; a run writes the same to `config.json`.
"""


def page() -> str:
    """The whole page."""
    return "\n".join([INTRODUCTION, *_presets(), *(line for node in nodes(TrainingConfig) for line in _node(node))])


def _presets() -> Iterator[str]:
    yield "## Presets\n"
    yield from (f"- `{name}`: {text}" for name, text in presets().items())
    yield ""


def _node(node: Node) -> Iterator[str]:
    key, cls = node.key, node.cls
    if cls is None:
        raise SystemExit(f"{key}={node.choice} cannot be documented: {node.missing} is not installed.")
    yield f"## `{key}.*` ({node.choice or cls.__name__})\n" if key else f"## {cls.__name__}\n"
    yield f"{inspect.cleandoc(cls.__doc__ or '')}\n"
    yield "| Key | Type | Default | Meaning |"
    yield "| --- | --- | --- | --- |"
    for name, setting in settings(cls).items():
        dotted = f"{key}.{name}" if key else name
        cells = [f"`{dotted}`", type_words(setting), _default(setting), setting.doc]
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
    yield ""


def _default(setting: Setting) -> str:
    if node_class(setting.annotation) is not None and setting.default is not None:
        return type(setting.default).__name__
    return f"`{shown(setting.default)}`"


def write_or_check(path: Path, text: str, source: str) -> int:
    """Write a generated page, or with --check say whether it is that of its `source` already; the exit status."""
    if "--check" not in sys.argv[1:]:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    elif not path.exists() or path.read_text(encoding="utf-8") != text:
        print(f"docs/{path.name} does not match {source}. Run `make docs` and commit the result.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, page(), "the config classes"))
