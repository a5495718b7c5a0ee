"""What a verdict is worth: one pure function from what is known of an answer to its score.

    signals = signals_of(verdict, format_ok=True, code=code, thought=thought)
    score = score_of(signals, RewardRules(...))

Each part lies between 0 and 1, but for speed, which has a cap. In `additive` mode the parts of earlier stages are paid
by themselves, so that there is something to climb before the first kernel is right; in `gated` mode (Kevin's form)
nothing is paid before it is. A cheat earns 0 in both. What the grader could not judge has no score.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import chz

from assay.config import Above, AtLeast, AtMost, Settings, UsedWhen, fact, refuse
from assay.kernels.verdicts import Verdict, VerdictKind
from assay.types import Json, Score

RewardMode = Literal["additive", "gated"]
SpeedShape = Literal["minus_one", "ratio", "log"]

UNJUDGED: frozenset[VerdictKind] = frozenset({"infra_error", "unsupported", "compiled_not_run"})
"""Verdicts that say nothing of whether a kernel is right. See `is_unjudged`."""
PARTS = ("format", "compile", "correctness", "speed", "length", "thinking")
MOST_SPEEDUP = 1e6
"""A larger one is no measurement."""


@chz.chz
class RewardShapes(Settings):
    """The shapes of the parts of a kernel's reward."""

    mode: RewardMode = "additive"
    """`additive` pays each stage by itself; `gated` pays nothing before a kernel is right, and then all parts."""
    partial_correctness: Annotated[bool, UsedWhen("mode", "additive")] = False
    """Pay for a kernel that is right on some calls their share, always less than for one that is right."""
    unsupported: Literal["errored", "invalid"] = "errored"
    """What becomes of a kernel that says what the grader cannot run, such as a function that the kernel language lacks:
    `errored` leaves it out of its group; `invalid` makes it worth no more than one that does not compile, for a policy
    that would drift to such kernels where nothing counts against them."""
    speed_shape: Annotated[SpeedShape, UsedWhen("pays_speed")] = "minus_one"
    """What a speedup s earns: `minus_one` s - 1, `ratio` s, `log` the binary logarithm of s; never below 0."""
    speed_cap: Annotated[float, Above(0), UsedWhen("pays_speed")] = 10.0
    """Most that the speed can earn, before its weight."""
    length_min: Annotated[int, AtLeast(0), UsedWhen("pays_length")] = 500
    """Characters of code up to which the part for length is 1."""
    length_max: Annotated[int, AtLeast(1), UsedWhen("pays_length")] = 8000
    """Characters of code from which it is 0."""
    thinking_none: Annotated[float, AtLeast(0), AtMost(1), UsedWhen("pays_thinking")] = 0.5
    """The part for thinking of an answer without a thought."""
    thinking_soft_max: Annotated[int, AtLeast(1), UsedWhen("pays_thinking")] = 2000
    """Characters of thought up to which it is 1."""
    thinking_hard_max: Annotated[int, AtLeast(1), UsedWhen("pays_thinking")] = 4000
    """Characters of thought from which it is `thinking_floor`."""
    thinking_floor: Annotated[float, AtLeast(0), AtMost(1), UsedWhen("pays_thinking")] = 0.7
    """The part for a thought that is too long."""

    @chz.validate
    def _in_order(self) -> None:
        refuse(
            f"{low}={getattr(self, low)} must be below {high}={getattr(self, high)}."
            for low, high in (("length_min", "length_max"), ("thinking_soft_max", "thinking_hard_max"))
            if getattr(self, low) >= getattr(self, high)
        )


@chz.chz
class KernelRewardConfig(Settings):
    """What answers to kernel problems earn."""

    reward_format_weight: Annotated[float, AtLeast(0)] = 0.1
    """Weight for an answer in the right form, with a kernel to grade."""
    reward_compile_weight: Annotated[float, AtLeast(0)] = 0.2
    """Weight for a kernel that is compiled."""
    reward_correctness_weight: Annotated[float, AtLeast(0)] = 1.0
    """Weight for a kernel that is right."""
    reward_speed_weight: Annotated[float, AtLeast(0)] = 0.0
    """Weight for the speedup of a right kernel, at the lower bound of what was measured; needs
    `measure_performance`."""
    reward_length_weight: Annotated[float, AtLeast(0)] = 0.05
    """Weight for short code, a tie-breaker among kernels that compile."""
    reward_thinking_weight: Annotated[float, AtLeast(0)] = 0.1
    """Weight for a thought in `<think>...</think>` before the kernel. At 0 answers are asked for without one."""
    reward: RewardShapes = chz.field(default_factory=RewardShapes)
    """Shapes of these parts, and how they are put together."""

    @fact("speed is paid for", "reward_speed_weight", cure="Raise reward_speed_weight")
    def pays_speed(self) -> bool:
        """Whether speed has a weight."""
        return self.reward_speed_weight > 0

    @fact("short code is paid for", "reward_length_weight", cure="Raise reward_length_weight")
    def pays_length(self) -> bool:
        """Whether length has a weight."""
        return self.reward_length_weight > 0

    @fact("thoughts are paid for", "reward_thinking_weight", cure="Raise reward_thinking_weight")
    def pays_thinking(self) -> bool:
        """Whether thinking has a weight; without one, prompts ask for none."""
        return self.reward_thinking_weight > 0

    @property
    def rules(self) -> RewardRules:
        """The weights and shapes as `score_of` takes them."""
        weights = {
            "format": self.reward_format_weight,
            "compile": self.reward_compile_weight,
            "correctness": self.reward_correctness_weight,
            "speed": self.reward_speed_weight,
            "length": self.reward_length_weight,
            "thinking": self.reward_thinking_weight,
        }
        return RewardRules(weights, self.reward)


@dataclass(frozen=True, slots=True)
class RewardRules:
    """Weights of the parts, by name, and their shapes."""

    weights: Mapping[str, float]
    shapes: RewardShapes


def impossible(config: KernelRewardConfig, measured: bool) -> Iterator[str]:
    """Why these weights cannot work, in words; `measured` says whether speed is measured."""
    weights = config.rules.weights
    if config.pays_speed and not measured:
        yield (
            f"reward_speed_weight={config.reward_speed_weight:g} pays for speed, which is not measured. Set "
            "measure_performance=true (on a GPU), or reward_speed_weight=0."
        )
    if not any(weights.values()):
        yield (
            "reward_correctness_weight and all other reward_*_weight are 0, so every answer earns the same and nothing "
            "can be learned. Raise one."
        )
    elif config.reward.mode == "gated" and not (weights["correctness"] or weights["speed"]):
        yield (
            "reward.mode=gated pays right kernels alone, and neither reward_correctness_weight nor reward_speed_weight "
            "is above 0. Raise one, or set reward.mode=additive."
        )


def pays_lateness(config: KernelRewardConfig, gamma: float) -> str:
    """Why a rollout that ends with its first right kernel could earn more by failing first; empty where it cannot.

    A turn's return is its reward and gamma times the next turn's return. Failing first and solving later never earns
    more than solving now where a failure earns at most (1 - gamma) of what a success does.
    """
    failing, solving = most_of_failure(config), least_of_success(config)
    if gamma == 0 or failing <= (1 - gamma) * solving + 1e-12:
        return ""
    return (
        f"gamma={gamma:g} with these rewards of the dataset builder: a turn without a right kernel can earn "
        f"{failing:g}, and one with it earns at least {solving:g}, so a rollout that fails first can earn more than "
        "one that solves its problem at once. Set reward.mode=gated, lower gamma or the weights for format, compile, "
        "length and thinking, leave out reward.partial_correctness, or set early_stop_on_correct=false."
    )


def most_of_failure(config: KernelRewardConfig) -> float:
    """Most that an answer earns whose kernel is not right."""
    if config.reward.mode == "gated":
        return 0.0
    weights = config.rules.weights
    partial = weights["correctness"] if config.reward.partial_correctness else 0.0
    return partial + sum(weights[part] for part in ("format", "compile", "length", "thinking"))


def least_of_success(config: KernelRewardConfig) -> float:
    """Least that an answer earns whose kernel is right, however long and slow it is."""
    weights, shapes = config.rules.weights, config.reward
    thought = weights["thinking"] * min(shapes.thinking_none, shapes.thinking_floor)
    return weights["format"] + weights["compile"] + weights["correctness"] + thought


@dataclass(frozen=True, slots=True)
class Signals:
    """What a reward depends on, of one answer."""

    format_ok: bool
    compiled: bool = False
    correct: bool = False
    cheat: bool = False
    tests_passed: int = 0
    tests_total: int = 0
    speedup: float | None = None
    """Lower bound of the measured speedup, no larger than the roofline allows; None where none may be rewarded."""
    code_characters: int = 0
    thought_characters: int = 0


def signals_of(verdict: Verdict | None, *, code: str = "", thought: str = "") -> Signals:
    """The signals of an answer; without a verdict it had no kernel to grade."""
    if verdict is None:
        return Signals(False, thought_characters=len(thought))
    return Signals(
        format_ok=True,
        compiled=is_compiled(verdict),
        correct=verdict.ok,
        cheat=verdict.kind == "cheat",
        tests_passed=verdict.tests_passed,
        tests_total=verdict.tests_total,
        speedup=rewardable_speedup(verdict),
        code_characters=len(code),
        thought_characters=len(thought),
    )


def is_unjudged(verdict: Verdict, shapes: RewardShapes) -> bool:
    """Whether a verdict leaves its answer without a score. One on a problem that cannot be graded always does."""
    if verdict.kind == "unsupported" and verdict.stage != "problem":
        return shapes.unsupported == "errored"
    return verdict.kind in UNJUDGED


def is_compiled(verdict: Verdict) -> bool:
    """Whether no compiler refused a candidate whose kernels ran. One that is wrong, crashes or times out then is not
    compiled for a GPU unless `grader.compile_check=all`; host code that fails before kernels run is not either."""
    return (
        verdict.kind in ("ok", "wrong", "crash", "timeout")
        and verdict.stage not in ("parse", "record")
        and verdict.compiled is not False
    )


def rewardable_speedup(verdict: Verdict) -> float | None:
    """The speedup that may be rewarded: the lower bound of the measured one, where it is not withheld.

    It is never above what the roofline of the GPU allows: the baseline's time over the time that no call can be faster
    than.
    """
    timing = verdict.timing
    if not verdict.ok or timing is None:
        return None
    found = number(timing, "rewardable")
    if found is None:
        return None
    floor, baseline = number(timing, "floor_ms"), number(timing, "baseline_ms")
    return min(found, baseline / floor) if floor and baseline else found


def number(values: Mapping[str, Json], name: str) -> float | None:
    """A finite number of a sensible size under a name; None for anything else."""
    value = values.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) and 0 <= value <= MOST_SPEEDUP else None


def parts_of(signals: Signals, shapes: RewardShapes) -> dict[str, float]:
    """Each part before its weight. Of a cheat, and of an answer without a kernel, all are 0."""
    if signals.cheat or not signals.format_ok:
        return dict.fromkeys(PARTS, 0.0)
    correct = signals.compiled and signals.correct
    return {
        "format": 1.0,
        "compile": float(signals.compiled),
        "correctness": correctness(signals, shapes),
        "speed": speed(signals.speedup, shapes) if correct else 0.0,
        "length": length(signals.code_characters, shapes) if signals.compiled else 0.0,
        "thinking": thinking(signals.thought_characters, shapes),
    }


def correctness(signals: Signals, shapes: RewardShapes) -> float:
    """1 for a right kernel; of another the share of its calls that were right, where that is paid, and less than 1."""
    if not signals.compiled:
        return 0.0
    if signals.correct:
        return 1.0
    if shapes.mode == "gated" or not shapes.partial_correctness or signals.tests_total < 1:
        return 0.0
    return max(0, min(signals.tests_passed, signals.tests_total - 1)) / signals.tests_total


def speed(speedup: float | None, shapes: RewardShapes) -> float:
    """What a speedup earns, from 0 to the cap; more for a larger one."""
    if speedup is None or speedup <= 0:
        return 0.0
    shaped = {"minus_one": speedup - 1, "ratio": speedup, "log": math.log2(speedup)}[shapes.speed_shape]
    return min(max(0.0, shaped), shapes.speed_cap)


def length(characters: int, shapes: RewardShapes) -> float:
    """1 up to `length_min` characters of code, 0 from `length_max` on, and a line between them."""
    return _falling(characters, shapes.length_min, shapes.length_max, 0.0)


def thinking(characters: int, shapes: RewardShapes) -> float:
    """1 for a thought of a reasonable length, less for none and for one that is too long."""
    if characters == 0:
        return shapes.thinking_none
    return _falling(characters, shapes.thinking_soft_max, shapes.thinking_hard_max, shapes.thinking_floor)


def _falling(value: int, begin: int, end: int, floor: float) -> float:
    """1 up to `begin`, `floor` from `end` on, linear between."""
    if value <= begin:
        return 1.0
    return floor if value >= end else 1.0 - (1.0 - floor) * (value - begin) / (end - begin)


def score_of(
    signals: Signals, rules: RewardRules, evidence: Mapping[str, Json] | None = None, cached: bool = False
) -> Score:
    """The score of an answer that was judged: `invalid` where it has no kernel that compiles, else `scored`."""
    parts = parts_of(signals, rules.shapes)
    paid = rules.shapes.mode == "additive" or parts["correctness"] > 0
    value = sum(rules.weights[part] * parts[part] for part in PARTS) if paid else 0.0
    judged = signals.format_ok and (signals.compiled or signals.cheat)
    return Score("scored" if judged else "invalid", value, parts, dict(evidence or {}), cached=cached)


def unjudged(verdict: Verdict, problem: str, evidence: Mapping[str, Json] | None = None) -> Score:
    """The score of an answer that the grader could not judge: none."""
    said = f"problem {problem} could not be graded ({verdict.kind}): {verdict.message}"
    return Score("errored", None, evidence={**(evidence or {}), "failure": "reward", "message": said, "attempts": 0})


def evaluation(verdict: Verdict | None, code: str, said: str = "") -> dict[str, Json]:
    """What the grader found, as a flat record that logs and traces keep.

    Args:
        verdict: None where there was nothing to grade.
        code: what was graded.
        said: why there was nothing to grade.
    """
    if verdict is None:
        verdict, ok = Verdict("compile_error", "parse", said), False
    else:
        ok = True
    timing = verdict.timing or {}
    return {
        "format_ok": ok,
        "compiled": ok and is_compiled(verdict),
        "correctness": ok and verdict.ok,
        "tests_passed": verdict.tests_passed,
        "tests_total": verdict.tests_total,
        "speedup": rewardable_speedup(verdict),
        "runtime_ms": number(timing, "candidate_ms"),
        "baseline_runtime_ms": number(timing, "baseline_ms"),
        "cheated": verdict.kind == "cheat",
        "error_message": verdict.message or None,
        "code_length": len(code),
        "metadata": {
            "kind": verdict.kind if ok else "format_error",
            "stage": verdict.stage,
            "cheat": verdict.cheat,
            **({"speedups": speedups(timing)} if timing else {}),
        },
    }


def speedups(timing: Mapping[str, Json]) -> dict[str, Json]:
    """Baseline -> the measured `speedup` over it and its `lower` bound; or why it is `withheld`."""
    others = timing.get("others")
    timings = {timing.get("baseline", "eager"): timing, **(others if isinstance(others, Mapping) else {})}
    found: dict[str, Json] = {}
    for name, one in timings.items():
        measured, lower = number(one, "speedup"), number(one, "rewardable")
        found[name] = {"speedup": measured, "lower": lower} if lower else {"withheld": str(one.get("quarantine") or "")}
    return found
