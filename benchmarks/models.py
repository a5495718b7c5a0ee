"""Assay's numbers against transformers' own forward pass, for every causal architecture that transformers has small.

    python benchmarks/models.py [--only NAME ...]

Each architecture of `common/architectures.py` is built tiny, with random weights of the size of trained ones. Assay
samples prompts of different lengths beyond the windows and chunks of attention, computes the log-probabilities again as
in training, and takes a gradient: with all weights trained and with LoRA, in float32 and in bfloat16. The truth is
transformers' own forward pass over each sequence by itself, in float32, without padding and without a cache.

`right`: in float32 every log-probability, sampled or computed again, is within 1e-4 nats of the truth, and the gradient
within 1e-3 of its norm; in bfloat16 the mean error is at most twice that of transformers' own pass in bfloat16 (plus
0.002 nats). `refused`: refused when it is loaded, in one sentence. `wrong`: anything else. `architectures` counts model
types; `right`, `refused` and `wrong` count forms, of which some types have several. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import logging
import warnings
from dataclasses import asdict
from typing import Any

import torch

from assay.backends.local.architectures.own_forward import FAILURES
from common import machine
from common.architectures import Make, catalogue
from common.model_checks import Outcome, measure

MODES = {
    "full, float32": ("float32", False),
    "LoRA, float32": ("float32", True),
    "full, bfloat16": ("bfloat16", False),
    "LoRA, bfloat16": ("bfloat16", True),
}


def outcome_of(make: Make, dtype: str, lora: bool) -> Outcome:
    """What `measure` finds; an error that is not a refusal is a wrong number."""
    try:
        return measure(make, dtype, lora)
    except FAILURES as error:
        return Outcome("failed", False, f"{type(error).__name__}: {str(error).splitlines()[:1]}")


def verdict(outcomes: dict[str, Outcome]) -> str:
    """`right`, `refused` or `wrong`; an architecture that peft cannot adapt is right if all else is."""
    if not all(outcome.right for outcome in outcomes.values()):
        return "wrong"
    return "refused" if outcomes["full, float32"].how == "refused" else "right"


def line(name: str, said: str, outcomes: dict[str, Outcome]) -> str:
    """One architecture, for a reader."""
    full, lora = outcomes["full, float32"], outcomes["LoRA, float32"]
    worst = max(max(o.sampled, o.trained) for o in (full, lora))
    half = max((max(o.sampled, o.trained) / o.noise for o in outcomes.values() if o.noise), default=0.0)
    reason = next((o.reason for o in outcomes.values() if o.reason), "")
    numbers = f"{worst:8.1e} nats, gradient {max(full.gradient, lora.gradient):7.1e}, bfloat16 {half:4.2f}x its noise"
    return f"{name:34s} {said:8s} {full.how:34s} {numbers if said != 'refused' else ''} {reason}"


def main() -> None:
    """Run every architecture and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="names of architectures; all by default")
    only = parser.parse_args().only
    warnings.simplefilter("ignore")
    logging.getLogger("assay").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    makes = {name: make for name, make in catalogue().items() if not only or name in only}
    for name, make in makes.items():
        outcomes = {mode: outcome_of(make, dtype, lora) for mode, (dtype, lora) in MODES.items()}
        said = verdict(outcomes)
        print(line(name, said, outcomes), flush=True)
        rows.append({"name": name, "verdict": said} | {mode: asdict(o) for mode, o in outcomes.items()})
    counts = {said: sum(row["verdict"] == said for row in rows) for said in ("right", "refused", "wrong")}
    types = {name.split(",")[0] for name in makes}
    print(json.dumps({"architectures": len(types), **counts, "forms": rows, **machine()}))


if __name__ == "__main__":
    main()
