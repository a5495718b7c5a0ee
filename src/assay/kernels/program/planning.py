"""The calls of a replay. Who wrote the program must know neither their order nor what tells one from another.

    calls = plan(program, draw, trials, rng)

A launch of an autotuned kernel has a configuration in each call, and every configuration is run.
"""

from __future__ import annotations

import io
import itertools
import math
import random
import tokenize
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from assay.kernels.numerics.screening import Case
from assay.kernels.numerics.secret_inputs import InputSet
from assay.kernels.program import rules
from assay.kernels.program.form import Launch, Program, of_earlier_calls
from assay.kernels.program.jobs import Replay
from assay.kernels.program.operations import reference_arithmetic

NAN = 0xFF
"""A byte of fresh memory that makes NaN of floats."""
FURTHER = 2
"""Calls in a row that are added where none of the others may be one."""
FOLLOWED = 3
"""More of them where something outlives a call, and calls after each in which weights moved."""
AT_ONCE = 2
"""Calls that are added where kernels use results of atomic operations: which program comes between which is chance."""
_ATOMIC = "atomic_"
_NO_CODE = frozenset({tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT})
MOST_READ = 1 << 15
"""Characters of a kernel in which it is looked for: these are read beside everything else that is graded."""
MAX_WORK_FAR, FEW_FAR = 1 << 22, 1
"""Arithmetic of a reference above which so many families alone, at random, are tried under weights that are far off."""
MAX_TOGETHER = 64
"""Choices of configurations for all launches together that are all tried. Of more, so many are tried at most, or as
many as one launch has, with each configuration among them."""
TRIES = 0.5
"""The chance of a call that an autotuner tries configurations in it first."""
MAX_TRIED_AGAIN = 6
"""Further calls in which an autotuner tries configurations first."""
MAX_PAIRED = 6
"""Tuned kernels whose pairs of configurations are looked after where there are more choices."""


def plan(
    program: Program, draw: InputSet, trials: int, rng: random.Random, constant_families: Sequence[str] = ()
) -> list[Replay]:
    """The calls of a replay: `trials` on inputs of as many families as can be, one of them once more, and again without
    each kernel, some under other weights; some in a row, on memory as the call before left it. Each has another poison,
    and runs the programs of a launch in another order, but for the one that is repeated without kernels. All others
    have error bounds.

    Where kernels are autotuned, calls are added until all configurations have run, on inputs that tell; accesses are
    followed in each of them.

    Args:
        program: What is replayed.
        draw: Inputs and expected outputs; at least one case.
        trials: Calls that must be right, besides the special ones.
        rng: The parent's own.
        constant_families: Families in which a constant would pass, and which prove nothing about kernels left out.
    """
    cases = _cases(draw, max(trials, 1), constant_families, rng)
    telling = [place for place, case in enumerate(cases) if not case.shows_answer]
    telling = [place for place in telling if cases[place].family not in constant_families] or telling
    telling = telling or list(range(len(cases)))
    # A kernel that only changes inputs has nothing to do where the reference changes none.
    most = max(len(cases[place].after) for place in telling)
    chosen = rng.choice([place for place in telling if len(cases[place].after) == most])
    first, *waiting = configurations(program, rng)
    tuned, every = bool(waiting), [first, *waiting]
    # Whole and without each kernel, all else equal: in another order sums of atomic operations have other bytes.
    whole = Replay(
        cases[chosen],
        NAN,
        seed=rng.getrandbits(32),
        in_order=True,
        follow=False,
        configurations=first,
    )
    kernels = rules.launched_kernels(program)
    left_out = [replace(whole, skip=kernel) for kernel in rng.sample(kernels, len(kernels))]
    told = [place for place in telling if place != chosen]
    pairs = [(cases[place], waiting.pop() if waiting else rng.choice(every)) for place in told]
    pairs += [(cases[telling[place % len(telling)]], choice) for place, choice in enumerate(waiting)]
    pairs += [(case, rng.choice(every)) for place, case in enumerate(cases) if place not in telling]
    asks = _asks(program)
    others = [_bounded(case, rng, follow=tuned or asks, configurations=choice) for case, choice in pairs]
    further = [(cases[rng.choice(telling)], rng.choice(every)) for _ in range(AT_ONCE if asks else 0)]
    others += [_bounded(case, rng, follow=tuned, configurations=choice) for case, choice in further]
    rng.shuffle(others)
    again = _bounded(whole.case, rng, follow=True, configurations=first)
    row = _in_a_row([again, *others], [cases[place] for place in telling], rng, bool(of_earlier_calls(program)))
    row = _tuning(row, rng) if _tunes(program) else row
    inputs = [cases[place] for place in rng.sample(telling, len(telling)) if cases[place] is not whole.case]
    return [*row, whole, *left_out, *_under_other_weights(program, draw, [whole.case, *inputs], every, rng)]


def _bounded(case: Case, rng: random.Random, *, follow: bool, configurations: tuple[int, ...]) -> Replay:
    seed = rng.getrandbits(32)
    return Replay(case, _poison(rng), seed=seed, follow=follow, bounded=True, configurations=configurations)


def _under_other_weights(
    program: Program, draw: InputSet, cases: Sequence[Case], choices: Sequence[tuple[int, ...]], rng: random.Random
) -> Iterator[Replay]:
    """The calls under weights that changed. `cases`: on their inputs, where weights do not have some of their own."""
    plain = Replay(cases[0], NAN, follow=False, bounded=True)
    manners = (False, True) if _tunes(program) else (False,)
    # Weights of another form than the reference's (fused, permuted) cannot be updated from outside, and need not.
    moves = [(draw.moved, draw.moved_weights, True), (draw.updated, draw.updated_weights, False)]
    for (other, weights, needed), tuning in itertools.product(moves, manners):
        if other is not None:
            chosen = replace(plain, configurations=rng.choice(choices))
            moved = replace(chosen, case=other, weights=weights, needed=needed, tuning=tuning)
            yield replace(moved, seed=rng.getrandbits(32))
            # In each of these a kernel may use what it kept of weights, and is stale now.
            for case in cases[:FOLLOWED] if of_earlier_calls(program) else ():
                again = replace(chosen, case=case, follow=True, restored=False, moved_back=True)
                yield replace(again, seed=rng.getrandbits(32))
    heavy = reference_arithmetic(draw.work) > MAX_WORK_FAR
    far = rng.sample(draw.far, min(FEW_FAR, len(draw.far))) if heavy else draw.far
    for other, weights in ((draw.nudged, draw.nudged_weights), *((other, draw.far_weights) for other in far)):
        if other is not None:
            updated = replace(plain, case=other, weights=weights, needed=False)
            yield replace(updated, seed=rng.getrandbits(32), configurations=rng.choice(choices))


def _tunes(program: Program) -> bool:
    """Whether an autotuner tries configurations."""
    return any(isinstance(step, Launch) and step.tuning is not None for step in program.steps)


def _asks(program: Program) -> bool:
    """Whether a kernel may use the result of an atomic operation.

    The language's own answer (`language.flow.lowering`) takes a parsed kernel, and text of submissions is parsed inside
    the sandbox alone. So this one reads tokens, and says yes wherever there is more than a call in a line of its own.
    """
    return any(
        _asks_in(kernel.source) or any(_ATOMIC in str(value) for _, _, value in kernel.names)
        for kernel in program.kernels
    )


def _asks_in(source: str) -> bool:
    # Many characters of one place that combine take long to be put in order, and some others are made of those.
    made_of = unicodedata.normalize("NFKD", "".join(sorted(set(source))))
    if len(source) > MOST_READ or any(map(unicodedata.combining, made_of)):
        return True
    text = unicodedata.normalize("NFKC", source)  # as Python reads names
    if _ATOMIC not in text:
        return False
    if len(text) > MOST_READ:
        return True
    try:
        return any(_uses_result(line) for line in _logical_lines(text))
    except (tokenize.TokenError, SyntaxError):
        return True


def _logical_lines(text: str) -> Iterator[list[str]]:
    """The tokens of each statement, or of each line of several; comments are in none."""
    line: list[str] = []
    for token in tokenize.generate_tokens(io.StringIO(text, newline=None).readline):
        if token.type == tokenize.ERRORTOKEN:  # as which Python 3.11 takes a quote that does not end, and each after it
            raise SyntaxError
        if token.type == tokenize.NEWLINE:
            yield line
            line = []
        elif token.type not in _NO_CODE:
            line.append(token.string)
    yield line


def _uses_result(line: Sequence[str]) -> bool:
    """Whether a line has an atomic operation and is not one call of it (`tl.atomic_add(...)`) alone."""
    atomic = [place for place, token in enumerate(line) if _ATOMIC in token]
    if not atomic:
        return False
    opened = [(token in "([{") - (token in ")]}") if len(token) == 1 else 0 for token in line]
    ends = [place for place, depth in enumerate(itertools.accumulate(opened)) if depth == 0 and place > 3]
    alone = atomic == [2] and line[1] == "." and line[3:4] == ["("] and ends[:1] == [len(line) - 1]
    return not alone


def _cases(draw: InputSet, trials: int, constant_families: Sequence[str], rng: random.Random) -> list[Case]:
    """The inputs as given, then those of the other families: all of them in turn. Where there are more families than
    trials, some at random, those that tell before those that do not."""
    first, *others = draw.cases
    if trials >= len(draw.cases):
        return [draw.cases[index % len(draw.cases)] for index in range(trials)]
    others = rng.sample(others, len(others))
    others.sort(key=lambda case: case.shows_answer or case.family in constant_families)
    return [first, *others[: trials - 1]]


def _in_a_row(calls: Sequence[Replay], telling: Sequence[Case], rng: random.Random, follow: bool) -> list[Replay]:
    """The calls, some of them after the one before with nothing restored between the two: at least one, on inputs that
    tell and that are other ones than those before. Where kernels are autotuned these are further ones, since the
    constructor's run again, in another configuration, for a call that is restored. `follow`: they are followed, and
    all but the first are such ones.
    """
    if len({call.configurations for call in calls}) == 1:
        sure = [place for place in range(1, len(calls)) if _tells(calls[place], calls[place - 1], telling)]
        if sure:
            chosen = rng.choice(sure)
            restored = [place != chosen and not follow and rng.random() < 0.5 for place in range(len(calls))]
            return [
                replace(call, restored=place == 0 or kept, follow=call.follow or (follow and place > 0 and not kept))
                for place, (call, kept) in enumerate(zip(calls, restored, strict=True))
            ]
    found = list(calls)
    for _ in range(FURTHER + FOLLOWED * follow):
        cases = [case for case in telling if case is not found[-1].case] or telling
        again = replace(found[-1], case=rng.choice(cases), poison=_poison(rng), seed=rng.getrandbits(32))
        found.append(replace(again, follow=follow, restored=False))
    return found


def _tells(call: Replay, before: Replay, telling: Sequence[Case]) -> bool:
    return call.case is not before.case and any(call.case is case for case in telling)


def _tuning(calls: Sequence[Replay], rng: random.Random) -> list[Replay]:
    """The calls, some of those that start anew with what an autotuner tries first. At least one is in the configuration
    of the first call. Each configuration has a call without, since a GPU tunes in its first call alone: where there
    would be none, the one with it is a further one."""
    fresh = [place for place, call in enumerate(calls) if place and call.restored]
    alike = [place for place in fresh if calls[place].configurations == calls[0].configurations]
    tried = {place for place in fresh if rng.random() < TRIES} | set(rng.sample(alike, min(len(alike), 1)))
    found, further = list(calls), [] if alike else [calls[0]]
    for place in sorted(tried):
        one = calls[place]
        if any(each.configurations == one.configurations and not each.tuning for each in found if each is not one):
            found[place] = replace(one, tuning=True)
        elif len(further) < MAX_TRIED_AGAIN:
            further.append(one)
    return found + [replace(each, poison=_poison(rng), seed=rng.getrandbits(32), tuning=True) for each in further]


def _poison(rng: random.Random) -> int:
    """A seed of random bytes for fresh memory: none of them is known, and no two need be the same."""
    return 256 + rng.getrandbits(31)


def configurations(program: Program, rng: random.Random) -> list[tuple[int, ...]]:
    """Choices of a configuration for each launch of a program, in random order; together they have every
    configuration of every launch, and all choices where these are few. One choice where nothing is autotuned.

    Where all choices are too many, they have each configuration in all launches of its kernel at once, as a tuner
    chooses it, and as many pairs of configurations of two kernels as they hold: what one kernel leaves for another may
    depend on both.
    """
    launches = [step for step in program.steps if isinstance(step, Launch)]
    counts = [len(launch.variants) for launch in launches]
    if math.prod(counts) <= MAX_TOGETHER:
        found = list(itertools.product(*map(range, counts)))
    else:
        found = _in_step(counts, rng)
        tuners = [(launch.kernel, len(launch.variants)) for launch in launches]
        several = sorted(set(tuners))
        together = [dict(zip(several, choice, strict=True)) for choice in _in_step([each[1] for each in several], rng)]
        found = found if len(several) < len(tuners) else []
        together += _pairs(several, together, MAX_TOGETHER - len(found) - len(together), rng)
        found += [tuple(chosen[tuner] for tuner in tuners) for chosen in together]
        found = list(dict.fromkeys(found))
    rng.shuffle(found)
    return found


Tuner = tuple[int, int]
"""A kernel and how many configurations it has."""


def _in_step(counts: Sequence[int], rng: random.Random) -> list[tuple[int, ...]]:
    """As many choices as it takes to have each configuration once, whichever it meets."""
    orders = [rng.sample(range(count), count) for count in counts]
    return [tuple(order[number % len(order)] for order in orders) for number in range(max(counts))]


def _pairs(
    tuners: Sequence[Tuner], made: Sequence[Mapping[Tuner, int]], most: int, rng: random.Random
) -> list[dict[Tuner, int]]:
    """Choices of a configuration for each tuner, in which as many pairs of configurations meet as `most` choices hold,
    besides those that meet already; no more choices than that takes."""
    tuned = [tuner for tuner in tuners if tuner[1] > 1]
    tuned = rng.sample(tuned, min(len(tuned), MAX_PAIRED))
    left = {
        (one, other): set(itertools.product(range(one[1]), range(other[1]))) - {(m[one], m[other]) for m in made}
        for one, other in itertools.combinations(tuned, 2)
    }
    found: list[dict[Tuner, int]] = []
    while len(found) < most and any(left.values()):
        pair = rng.choice([pair for pair, missing in left.items() if missing])
        chosen = dict(zip(pair, rng.choice(sorted(left[pair])), strict=True))
        for tuner in rng.sample(tuned, len(tuned)):
            if tuner not in chosen:
                gains = [_gain(left, tuner, each, chosen) for each in range(tuner[1])]
                chosen[tuner] = rng.choice([each for each, gain in enumerate(gains) if gain == max(gains)])
        for one, other in left:
            left[one, other].discard((chosen[one], chosen[other]))
        found.append({tuner: chosen.get(tuner, rng.randrange(tuner[1])) for tuner in tuners})
    return found


def _gain(
    left: Mapping[tuple[Tuner, Tuner], set[tuple[int, int]]], tuner: Tuner, its: int, chosen: Mapping[Tuner, int]
) -> int:
    """With how many tuners that have chosen one has yet to meet in a configuration."""
    met = [left.get((tuner, one), ()) for one in chosen], [left.get((one, tuner), ()) for one in chosen]
    ahead = sum((its, other) in missing for other, missing in zip(chosen.values(), met[0], strict=True))
    return ahead + sum((other, its) in missing for other, missing in zip(chosen.values(), met[1], strict=True))
