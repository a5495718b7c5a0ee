"""Points e, f and g: whether losses are sums, gradients add up, and each loss is the one it is called."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import tinker

from assay.backends.base import LossSpec
from assay.backends.tinker import convert
from assay.backends.tinker.custom import custom_loss
from assay.backends.tinker.probe.bench import Ask, Bench, probe_datum
from assay.backends.tinker.probe.finding import Finding, judged
from assay.types import FloatArray

WITHIN = 0.3
"""Share by which a measured factor may be off: rounding of half precision, and steps that are not quite small."""
RATIO, LOW, CLIP = 1.5, 0.8, 1.2
"""Of the policy to a made-up sampler, and where it is clipped."""
SUM = "losses must be sums over tokens and sequences, without any mean"
VALUES_WITHIN = 0.02


async def look_at_sums(bench: Bench) -> list[Finding]:
    """Point e: weights, batches and calls add up; a step clears what was added up."""
    one = await bench.calibrate()
    again = abs(await bench.effect(bench.ascent(bench.next_sign())))
    rows = [
        _factor("e", "a step clears the gradient", 1, again / one, "the server must clear the gradient at optim_step")
    ]
    base = math.sqrt(one * again)

    async def factor(*asks: Ask) -> float:
        return abs(await bench.effect(*asks)) / base

    sign = bench.next_sign
    weight, twice = sign(), sign()
    rows.append(_factor("e", "weights x2", 2, await factor(bench.ascent(2 * weight)), SUM))
    rows.append(_factor("e", "batch x2", 2, await factor(bench.ascent(twice, 2)), SUM))
    calls = sign()
    added = await factor(bench.ascent(calls), bench.ascent(calls))
    rows.append(
        _factor("e", "two forward_backward add up", 2, added, "gradients must accumulate until optim_step clears them")
    )
    longer = bench.ascent(sign(), datum=probe_datum([*bench.tokens, *bench.tokens], after=len(bench.tokens)))
    rows.append(_factor("e", "tokens of weight 0 change nothing", 1, await factor(longer), SUM))
    bench.base = base
    return rows


def _factor(point: str, name: str, want: float, got: float, cure: str, *, feature: str = "") -> Finding:
    ok = abs(got - want) <= WITHIN * max(abs(want), 1 / 2)
    found = f"the step was {got:.2f} times as large, where {want:g} is right"
    return judged(point, name, ok, found, cure, figure=got, feature=feature)


@dataclass(frozen=True)
class Loss:
    """A loss by name, and what it must give for sequences of some ratios to a made-up sampler."""

    name: str
    effect: float
    """Of its gradient, in those of cross entropy."""
    config: dict[str, float]
    ratios: tuple[float, ...] = (RATIO,)
    """One for each sequence."""
    advantage: float = 1.0

    @property
    def label(self) -> str:
        """In the names of findings."""
        return self.name if self.advantage > 0 else f"{self.name} with negative advantages"

    def value(self, logprobs: FloatArray, mask: FloatArray) -> float:
        """The sum that it must report."""
        count = float(mask.sum())
        clipped = [min(max(r, LOW), CLIP) for r in self.ratios]
        lower = (min(r * self.advantage, c * self.advantage) for r, c in zip(self.ratios, clipped, strict=True))
        values = {
            "cross_entropy": -float(logprobs.sum()),
            "importance_sampling": -sum(r * self.advantage for r in self.ratios) * count,
            "ppo": -sum(lower) * count,
            "cispo": -sum(c * self.advantage for c in clipped) * float(logprobs.sum()),
        }
        return values[self.name]


THRESHOLDS = {"clip_low_threshold": LOW, "clip_high_threshold": CLIP}
LOSSES = (
    Loss("cross_entropy", 1, {}),
    Loss("importance_sampling", RATIO, {}),
    Loss("ppo", 0, THRESHOLDS),
    # The larger ratio is trained down whole, the smaller ones are clipped.
    Loss("ppo", -RATIO, THRESHOLDS, (RATIO, 1 / 2, 1 / 2), -1.0),
    Loss("cispo", CLIP, THRESHOLDS),
)


async def look_at_loss(bench: Bench, loss: Loss) -> list[Finding]:
    """Point f: a loss is accepted, and has the value and the gradient that its name says."""
    now = await bench.forward()
    mask = bench.datum.mask
    data = [
        replace(
            bench.datum,
            logprobs=(now - math.log(ratio) * mask).astype(np.float32),
            advantages=(loss.advantage * mask).astype(np.float32),
        )
        for ratio in loss.ratios
    ]
    inputs = bench.supervised(1.0) if loss.name == "cross_entropy" else convert.rollouts(data)
    asked = bench.client.forward_backward(inputs, loss.name, loss.config or None)  # type: ignore[arg-type]
    output = await bench.wait(asked, loss.name)
    await bench.step()
    factor = (float((await bench.forward()).sum()) - float(now.sum())) / bench.base
    await bench.effect(bench.ascent(-factor))
    feature = "" if loss.name == "cross_entropy" else loss.name
    cure = f"do not train with {loss.name} here; report it to whoever keeps the server"
    return [
        _value(output.metrics, loss.value(now, mask), f"{loss.label} reports loss:sum", feature),
        _factor("f", f"{loss.label} has its gradient", loss.effect, factor, cure, feature=feature),
    ]


def _value(metrics: dict[str, float], want: float, name: str, feature: str) -> Finding:
    got = metrics.get("loss:sum")
    if got is None:
        cure = "the server must report loss:sum; custom losses of the SDK fail without it, too"
        return judged(
            "f", name, False, f"its metrics are {', '.join(sorted(metrics)) or 'none'}", cure, feature=feature
        )
    ok = abs(got - want) <= VALUES_WITHIN * max(1.0, abs(want))
    told = f"{got:.5g}, where {want:.5g} is right"
    return judged("f", name, ok, told, f"{SUM}, with the thresholds that were given", figure=got, feature=feature)


async def look_at_custom(bench: Bench) -> list[Finding]:
    """Point g: a loss that is computed on this side."""

    def doubled(
        logprobs: FloatArray, behaviour: FloatArray, advantages: FloatArray, sequences: FloatArray
    ) -> FloatArray:
        return -2 * logprobs * advantages

    data = [replace(bench.datum, advantages=bench.datum.mask)]
    spec = LossSpec(doubled)

    def ask(client: tinker.TrainingClient) -> object:
        return client.forward_backward_custom(bench.supervised(1.0), custom_loss(spec, data))

    factor = await bench.effect(ask) / bench.base
    await bench.effect(bench.ascent(-factor))
    cure = "use losses that the server knows by name, without a KL term in the loss (grpo.kl_placement=reward)"
    return [_factor("g", "forward_backward_custom has its gradient", 2, factor, cure, feature="custom")]
