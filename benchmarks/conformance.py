"""Assay's losses, gradients and advantages beside those of TRL and verl, on the same ragged float64 batches.

    python benchmarks/conformance.py [--quick] [--verl-python PYTHON]     (pip install '.[torch,trl]')

The peers' own functions are called: TRL's trainers (`_compute_loss`, `_generate_and_score_completions`) with the batch
in place of the model's output, and verl's registered policy losses, `agg_loss`, `kl_penalty` and advantage estimators.
Assay's side is its `GRPOTrainer`, from rewards to the loss. Compared are the loss and its gradient with respect to the
log-probabilities and entropies of every token, or the advantages; `tests/support/conformance` has the list.

A cell is one comparison on one batch: three spreads of the policy ratio (on-policy, around the clip ranges, far
beyond), four seeds. It agrees where the largest difference is below 1e-6 of the largest number. Where it does not, a
named convention must explain it: both sides must be equal once the convention is put in.

verl runs in its own environment, by `--verl-python` (`make test` makes .venv-verl). Where there is none, its cells are
not counted, and `peers.verl` says why.

The last line is one JSON object: `cells`, `agree`, `named`, `disagreements` (each convention with who is right, why and
in which cells), `unnamed` and `peers`. The exit status is 1 if a cell differs for a reason without a name.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from common import machine
from support.conformance.cases import SEEDS, SPREADS
from support.conformance.changes import Numbers
from support.conformance.comparisons import Peer
from support.conformance.conventions import CONVENTIONS
from support.conformance.judge import (
    TOLERANCE,
    Cell,
    Question,
    Verdict,
    cells_of,
    judge,
    numbers_of,
    trl_answers,
)

ROOT = Path(__file__).resolve().parents[1]


def verl_answers(python: Path, asked: Sequence[tuple[Cell, Question]]) -> list[Numbers]:
    """verl's, computed by a process in its environment."""
    with tempfile.TemporaryDirectory() as folder:
        questions, answers = Path(folder) / "questions.pt", Path(folder) / "answers.pt"
        torch.save([question for _, question in asked], questions)
        command = [str(python), "-m", "support.conformance.verl_side", str(questions), str(answers)]
        paths = os.pathsep.join(str(ROOT / part) for part in ("tests", "src"))
        subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"})
        return [numbers_of(found) for found in torch.load(answers, weights_only=True)]


def verl_version(python: Path) -> str | None:
    """Of the verl that an interpreter imports; None without the interpreter or verl."""
    if not python.exists():
        return None
    asks = "from importlib.metadata import version; print(version('verl'))"
    found = subprocess.run([str(python), "-c", asks], capture_output=True, text=True, check=False)
    return found.stdout.strip() if found.returncode == 0 else None


def report(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """The counts, with each convention that was needed."""
    disagreements = []
    for name, convention in CONVENTIONS.items():
        where = [v for v in verdicts if v.named and name in v.named]
        if where:
            disagreements.append(
                {"name": name, "right": convention.right, "why": convention.why, "count": len(where)}
                | {"cells": sorted({place(v.cell) for v in where})}
                | {"largest_difference": max(v.difference for v in where)}
            )
    unnamed = [v for v in verdicts if v.named is None]
    agreeing = [v for v in verdicts if v.named == ()]
    return {
        "cells": len(verdicts),
        "agree": len(agreeing),
        "named": sum(1 for v in verdicts if v.named),
        "disagreements": disagreements,
        "unnamed": [f"{place(v.cell)}, seed {v.cell.seed}: {v.difference:.2g}" for v in unnamed],
        "largest_difference_that_agrees": max((v.difference for v in agreeing), default=None),
        "tolerance": TOLERANCE,
    }


def place(cell: Cell) -> str:
    """A cell in words, without its seed."""
    spread = "" if cell.comparison.advantages else f", spread {cell.spread:g}"
    return f"{cell.comparison.peer} {cell.comparison.name}{spread}"


def show(verdicts: Sequence[Verdict]) -> None:
    """One line for each comparison, with its worst cell."""
    print(f"{'peer':5s} {'comparison':36s} {'cells':>5s} {'agree':>5s} {'difference':>10s}   explained by")
    for comparison in dict.fromkeys(v.cell.comparison.name + "\n" + v.cell.comparison.peer for v in verdicts):
        name, peer = comparison.split("\n")
        these = [v for v in verdicts if (v.cell.comparison.name, v.cell.comparison.peer) == (name, peer)]
        causes = {" and ".join(v.named) if v.named else "NOTHING" for v in these if v.named != ()}
        agree = sum(v.named == () for v in these)
        worst = max(v.difference for v in these)
        print(f"{peer:5s} {name:36s} {len(these):5d} {agree:5d} {worst:10.1e}   {', '.join(sorted(causes))}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one seed")
    parser.add_argument("--verl-python", type=Path, default=ROOT / ".venv-verl/bin/python", help="verl's interpreter")
    args = parser.parse_args()
    torch.set_num_threads(1)
    seeds = SEEDS[:1] if args.quick else SEEDS
    peers: dict[Peer, str] = {"trl": version("trl")}
    verdicts = judge(cells_of("trl", SPREADS, seeds), trl_answers)
    found = verl_version(args.verl_python)
    if found is None:
        peers["verl"] = f"not compared: {args.verl_python} does not import it"
        print(f"verl's cells are left out: {args.verl_python} does not import verl. `make test` makes .venv-verl.")
    else:
        peers["verl"] = found
        verdicts += judge(cells_of("verl", SPREADS, seeds), lambda asked: verl_answers(args.verl_python, asked))
    show(verdicts)
    result = report(verdicts)
    print(json.dumps(result | {"peers": peers, "seeds": len(seeds), "machine": machine()}))
    sys.exit(1 if result["unnamed"] else 0)


if __name__ == "__main__":
    main()
