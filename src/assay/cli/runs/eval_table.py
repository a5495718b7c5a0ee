"""What `assay eval` found, in a few lines for a terminal; the JSON beside it has everything. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from assay.terminal import inert
from assay.types import Json

_SHARES = ("format_rate", "compile_rate", "correct_rate", "cheat_rate")


def table(report: Mapping[str, Json]) -> str:
    """Mean and 95 % interval of the main figures: of kernels in all and in each level, or of the policy's metrics.

    Args:
        report: what is printed as JSON (`Measured.report`).
    """
    figures: Mapping[str, Json] | None = report.get("figures")
    if figures is None:
        columns = {"": dict(sorted(report["metrics"]["policy"].items(), key=lambda item: item[0] != "reward"))}
        passed: Mapping[str, Mapping[str, Json]] = report.get("pass_at") or {}
        columns[""] |= {f"{name}, pass@{k}": one for name, each in passed.items() for k, one in each.items()}
    else:
        # The only level there is says what all of them say.
        parts = list(figures)[: None if len(figures) > 2 else 1]
        columns = {part: dict(_of_kernels(figures[part])) for part in parts}
    names = [name for name, value in next(iter(columns.values())).items() if value is not None]
    rows = [["", *columns], *([name, *(_words(found.get(name)) for found in columns.values())] for name in names)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(f"{cell:{w}}" for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
    return inert("\n".join([line for line in lines if line] + [f"Note: {note}" for note in report.get("notes", ())]))


def _of_kernels(block: Mapping[str, Json]) -> Iterator[tuple[str, Json]]:
    """The main figures of a part of the problems, in the order in which they are read."""
    yield from ((f"pass@{k}", one) for k, one in block["pass_at"].items())
    yield from ((name, block[name]) for name in _SHARES)
    for baseline, of_p in block["fast_p"].items():
        yield from ((f"fast_{p} ({baseline})", one) for p, one in of_p.items() if p != "0")
        speed = block["speedup"][baseline]
        yield f"speedup ({baseline}, geometric mean)", speed and speed["geometric_mean"]


def _words(found: Mapping[str, Json] | None) -> str:
    """`0.512 (0.31 to 0.7)`; without an interval where there is none, a dash where there is nothing."""
    if found is None:
        return "-"
    between = "" if found["low"] is None else f" ({found['low']:.3g} to {found['high']:.3g})"
    return f"{found['mean']:.3g}{between}"
