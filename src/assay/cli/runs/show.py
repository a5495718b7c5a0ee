"""`assay show`: the prompts, answers and rewards of a run, group by group."""

from __future__ import annotations

import argparse
import dataclasses
import heapq
import json
import math
import shutil
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from assay.cli.options import no_settings
from assay.errors import DataError
from assay.terminal import clipped, inert
from assay.training.run.ledger import place_in_words
from assay.training.run.rollouts import Group, GroupKey, Rollout, Rollouts, Turn, open_rollouts
from assay.types import Json, Message

GROUPS = 3
"""Groups that are shown, unless `--limit` says otherwise."""
LINES = 6
"""Lines of a prompt, an answer or a piece of evidence that are shown without `--full`."""
ROLLOUTS = 8
"""Rollouts of a group that are shown without `--full`."""
_SORTS: Mapping[str, Callable[[Rollout], float | None]] = {
    "reward": lambda rollout: rollout.reward,
    "advantage": lambda rollout: rollout.advantage,
    "length": lambda rollout: float(rollout.length),
}


@dataclass(frozen=True, slots=True)
class Choice:
    """Which rollouts to show; None is any."""

    step: int | None = None
    split: str | None = None
    group: int | None = None
    task: str | None = None
    """A task's id, or how its key begins."""
    errors: bool = False
    """Only rollouts that could not be scored."""
    sort: str | None = None
    ascending: bool = False
    limit: int = GROUPS


def arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument("run", type=Path, metavar="RUN", help="run directory (`log_path` of the run)")
    parser.add_argument("--step", type=int, metavar="N", help="the step with that number in the files (default: last)")
    parser.add_argument("--group", type=int, metavar="G", help="one group of the step, from 0")
    parser.add_argument("--task", metavar="ID", help="a task by its id or key, in all steps unless --step is given")
    parser.add_argument("--split", choices=("train", "eval"), help="default: train, where the run has trained")
    parser.add_argument("--sort", choices=tuple(_SORTS), help="the highest first: groups, and answers in them")
    parser.add_argument("--ascending", action="store_true", help="with --sort: the lowest first")
    parser.add_argument(
        "--errors",
        action="store_true",
        help="only answers that could not be scored, in all steps unless --step is given",
    )
    parser.add_argument("--limit", type=int, default=GROUPS, metavar="N", help=f"groups shown (default: {GROUPS})")
    parser.add_argument("--full", action="store_true", help="show whole texts and all answers")
    parser.add_argument("--json", action="store_true", help="one JSON object per rollout, whole")


def run(args: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Print the groups that are wanted."""
    no_settings(overrides, "show")
    if args.limit < 1:
        raise DataError(f"--limit={args.limit} shows nothing. Give 1 or more.")
    choice = Choice(args.step, args.split, args.group, args.task, args.errors, args.sort, args.ascending, args.limit)
    rollouts = open_rollouts(args.run)
    keys = chosen_keys(rollouts, choice)
    found = pick(rollouts, keys, choice)
    if args.json:
        for group in found:
            for rollout in group.rollouts:
                print(json.dumps(dataclasses.asdict(rollout)))
        return 0
    width = shutil.get_terminal_size().columns
    lines, matches = 0, 0
    for group in found:
        matches += 1
        for line in group_lines(group, width, full=args.full):
            lines += 1
            print(line)
    print(clipped(_closing(rollouts, keys, matches, choice), width))
    return 0


def chosen_keys(rollouts: Rollouts, choice: Choice) -> list[GroupKey]:
    """The groups that can hold what is wanted, as far as their places tell; the last step's if no step is asked for.

    Raises:
        DataError: there are none; the message lists those there are.
    """
    keys = rollouts.keys
    if not keys:
        raise DataError(f"{rollouts.run} holds no rollouts yet: the run has not come to its first batch or evaluation.")
    split = choice.split or ("train" if choice.step is None and any(key.split == "train" for key in keys) else None)
    found = [key for key in keys if split in (None, key.split) and choice.group in (None, key.group)]
    steps = sorted({key.step for key in keys if choice.split in (None, key.split)})
    if choice.step is not None:
        found = [key for key in found if key.step == choice.step]
    elif choice.task is None and not choice.errors and found:
        found = [key for key in found if key.step == found[-1].step]
    if not found:
        where = f"step {choice.step}" if choice.step is not None else "the run"
        what = f"group {choice.group}" if choice.group is not None else "rollouts"
        of = f" of {choice.split}" if choice.split else ""
        raise DataError(f"{where.capitalize()} has no {what}{of}. Steps with rollouts{of}: {_ranges(steps) or 'none'}.")
    return found


def pick(rollouts: Rollouts, keys: Sequence[GroupKey], choice: Choice) -> list[Group]:
    """At most `choice.limit` groups, each with the rollouts that are wanted, in the order that is wanted.

    The file is read group by group; no more than `limit` groups are in memory.
    """
    whole_run = choice.step is None and (choice.task is not None or choice.errors)
    groups = _matching(rollouts, reversed(keys) if whole_run else keys, choice)
    if choice.sort is None:
        return [group for group, _ in zip(groups, range(choice.limit), strict=False)]
    value = _SORTS[choice.sort]
    sign = -1.0 if choice.ascending else 1.0

    def rank(rollout: Rollout) -> float:
        found = value(rollout)
        return -math.inf if found is None else sign * found

    ordered = (Group(group.key, tuple(sorted(group.rollouts, key=rank, reverse=True))) for group in groups)
    return heapq.nlargest(choice.limit, ordered, key=lambda group: rank(group.rollouts[0]))


def _matching(rollouts: Rollouts, keys: Iterable[GroupKey], choice: Choice) -> Iterator[Group]:
    for key in keys:
        group = rollouts.group(key)
        wanted = tuple(r for r in group.rollouts if _is_wanted(r, choice))
        if wanted:
            yield Group(key, wanted)


def _is_wanted(rollout: Rollout, choice: Choice) -> bool:
    task = choice.task
    named = task is None or rollout.task == task or (len(task) >= 4 and rollout.key.startswith(task))
    return named and (rollout.errored or not choice.errors)


def group_lines(group: Group, width: int, *, full: bool) -> Iterator[str]:
    """A group as lines of at most `width` characters; whole, and as long as they are, with `full`."""
    first = group.rollouts[0]
    yield from _fit([f"\u2500\u2500 {place(first)} \u00b7 {task_name(first)}"], width, full)
    asked = first.turns[0].messages
    yield from _fit(_text("\n".join(_message(m, len(asked) > 1) for m in asked), "  ", full), width, full)
    shown = group.rollouts if full else group.rollouts[:ROLLOUTS]
    for rollout in shown:
        yield from _fit(_rollout_lines(rollout, asked, width, full), width, full)
    if len(shown) < len(group.rollouts):
        yield f"  \u2026 and {len(group.rollouts) - len(shown)} more answers (--full)"
    yield ""


def place(rollout: Rollout) -> str:
    """Where a rollout's group is: `step 12 (rl 7), train, group 0`."""
    step = place_in_words(rollout.step, rollout.phase, rollout.index)
    return f"{step}, {rollout.split}, group {rollout.group}"


def task_name(rollout: Rollout) -> str:
    """The task's name and tags, as one line."""
    tags = f" [{', '.join(rollout.tags)}]" if rollout.tags else ""
    return inert(f"{rollout.env} {rollout.task}{tags}", lines=False)


def _message(message: Message, named: bool) -> str:
    return f"{message.role}: {message.content}" if named else message.content


def _rollout_lines(rollout: Rollout, asked: Sequence[Message], width: int, full: bool) -> Iterator[str]:
    reward = "could not be scored" if rollout.reward is None else f"reward {rollout.reward:.4g}"
    facts = [f"#{rollout.sample}", reward, *_parts(rollout.parts), _training(rollout), f"{rollout.length} tokens"]
    if rollout.end not in ("done", "errored"):
        facts.append(f"ended by {rollout.end}")
    yield f"  {'  '.join(fact for fact in facts if fact)}"
    for turn in rollout.turns:
        if turn.turn or turn.messages != asked:
            told = "\n".join(_message(m, True) for m in turn.messages) or turn.observation or ""
            yield f"    turn {turn.turn + 1}, told:"
            yield from _text(told, "      ", full)
        if len(rollout.turns) > 1:
            value, advantage = turn.verdict.value, turn.advantage
            earned = "not scored" if value is None else f"{value:.4g}"
            trained = "" if advantage is None else f", advantage {advantage:+.4g}"
            yield f"    turn {turn.turn + 1}, said ({earned}{trained}):"
        if turn.thought:
            yield "    thought:"
            yield from _text(turn.thought, "      ", full)
        yield from _text(_said(turn), "    \u2502 ", full)
        if turn.verdict.status == "invalid":
            yield "    invalid"
        yield from _kernel_verdict(turn.verdict.evidence, width, full)
        yield from _evidence(_not_said(turn), full)


def _said(turn: Turn) -> str:
    if turn.text is None:
        return "(the rollout failed before its first turn)"
    cut = " \u2026(cut off at max_tokens)" if turn.stop_reason == "length" else ""
    return f"{turn.text or '(nothing)'}{cut}"


def _parts(parts: Mapping[str, float]) -> list[str]:
    return [f"{inert(name, lines=False)} {value:.4g}" for name, value in parts.items()]


def _training(rollout: Rollout) -> str:
    if rollout.advantage is not None:
        return f"advantage {rollout.advantage:+.4g}"
    removed = next((turn.removed for turn in rollout.turns if turn.removed is not None), None)
    return "" if removed is None else f"not trained ({removed})"


def _kernel_verdict(evidence: Mapping[str, Json], width: int, full: bool) -> Iterator[str]:
    """What a grader found of a kernel, and why, in lines that are not cut off; nothing for other evidence."""
    result = evidence.get("eval_result")
    metadata = result.get("metadata") if isinstance(result, Mapping) else None
    if not isinstance(result, Mapping) or not isinstance(metadata, Mapping):
        return
    where = f" ({metadata['stage']})" if metadata.get("stage") else ""
    why = f": {result['error_message']}" if result.get("error_message") else ""
    said = "\n".join(
        part
        for line in inert(f"verdict: {metadata.get('kind')}{where}{why}").expandtabs(4).split("\n")
        for part in textwrap.wrap(line, max(20, width - 6), replace_whitespace=False, drop_whitespace=False) or [line]
    )
    first, *more = _text(said, "", full)
    yield f"    {first}"
    yield from (f"      {line}" for line in more)


def _not_said(turn: Turn) -> dict[str, Json]:
    """The evidence without a kernel that is shown already, in the answer."""
    said = turn.text or ""
    return {n: v for n, v in turn.verdict.evidence.items() if n != "kernel" or not (isinstance(v, str) and v in said)}


def _evidence(evidence: Mapping[str, Json], full: bool) -> Iterator[str]:
    for name, value in evidence.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        head, *more = list(_text(text, "", full)) or [""]
        yield f"    {inert(name, lines=False)}: {head}"
        yield from (f"      {line}" for line in more)


def _text(text: str, indent: str, full: bool) -> Iterator[str]:
    lines = inert(text).expandtabs(4).split("\n")
    shown = lines if full else lines[:LINES]
    yield from (f"{indent}{line}" for line in shown)
    if len(shown) < len(lines):
        yield f"{indent}\u2026 and {len(lines) - len(shown)} more lines (--full)"


def _fit(lines: Iterable[str], width: int, full: bool) -> Iterator[str]:
    return (line if full else clipped(line, width) for line in lines)


def _closing(rollouts: Rollouts, keys: Sequence[GroupKey], shown: int, choice: Choice) -> str:
    """What was shown, of how much."""
    if not shown:
        what = " that could not be scored" if choice.errors else ""
        of = f" of task {inert(choice.task, lines=False)}" if choice.task is not None else ""
        return f"No answers{what}{of} in {len(keys)} groups (steps {_ranges(sorted({key.step for key in keys}))})."
    under_way = (
        ""
        if rollouts.committed is not None and keys[-1].step <= rollouts.committed
        else (f"; step {keys[-1].step} is not committed: it is under way, or failed")
    )
    return f"{shown} of {len(keys)} groups shown{under_way}."


def _ranges(numbers: Sequence[int]) -> str:
    """`0 to 4, 6, 8 to 9`: runs of the sorted numbers, those in the middle left out where there are many."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    texts = [str(a) if a == b else f"{a} to {b}" for a, b in runs]
    return ", ".join(texts if len(texts) <= 6 else [*texts[:3], "\u2026", *texts[-2:]])
