"""Which commit of a run a resume goes on from, and what to say when its checkpoint is not there. Only reads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from assay.errors import RunDirectoryError
from assay.training.run.checkpoints import checkpoint_folder
from assay.training.run.growth import Length
from assay.training.run.ledger import Commit, LedgerContent, live_checkpoints


def position_to_go_on_from(
    path: Path, content: LedgerContent, resume_from_batch: int | None, length: Length | None
) -> int:
    """Position in the ledger of the commit to go on from.

    Raises:
        RunDirectoryError: no commit has a checkpoint (of that batch) from which a run of this `length` can go on; the
            message lists the batches that have one.
    """
    saved = [commit.step + 1 for commit in live_checkpoints(content.commits)]
    wanted = [i for i in saved if resume_from_batch in (None, content.commits[i].batch)]
    serving = [i for i in wanted if length is None or length.serves(content.commits[i])]
    if serving:
        return serving[-1]
    available = [c for c in content.commits if length is None or length.serves(c)]
    batches = as_ranges(available_batches(path, available))
    which = "" if resume_from_batch is None else f" of RL batch {resume_from_batch}"
    if wanted and length is not None:
        raise RunDirectoryError(
            f"{length}: {path} has no checkpoint{which} from which a run of the new length could go on: the run would "
            f"be complete there, or (max_steps_off_policy={length.ahead}) the checkpoint lacks batches that it would "
            f"have sampled ahead by then. Batches from which it can: {batches}. Set resume_from_batch to one of them, "
            f"or leave max_batches={length.before}."
        )
    raise RunDirectoryError(
        f"{path} has no checkpoint{which} to resume from. Batches with a checkpoint: {batches}. "
        "Set resume_from_batch to one of them, or set log_path to a new directory to start again."
    )


def available_batches(path: Path, commits: Sequence[Commit]) -> list[int]:
    """RL batches that `resume_from_batch` can name: those whose checkpoint folder exists."""
    return sorted({c.batch for c in live_checkpoints(commits) if checkpoint_folder(path, c).is_dir()})


def as_ranges(batches: Iterable[int]) -> str:
    """Rising numbers in words, with at least four in equal steps as a range: `0, 3, 10 to 90 by 10`."""
    rest, parts = list(batches), list[str]()
    while rest:
        step = rest[1] - rest[0] if len(rest) > 1 else 0
        length = next((i for i in range(1, len(rest)) if rest[i] - rest[i - 1] != step), len(rest))
        if length >= 4:
            parts.append(f"{rest[0]} to {rest[length - 1]}" + (f" by {step}" if step > 1 else ""))
        taken = length if length >= 4 else 1
        parts += [str(rest[0])] if taken == 1 else []
        rest = rest[taken:]
    return ", ".join(parts) or "none"


def cure_of(path: Path, content: LedgerContent, damaged: Commit) -> str:
    """What to do when the checkpoint of `damaged` cannot be used: go back to another one, or start again."""
    others = [batch for batch in available_batches(path, content.commits) if batch != damaged.batch]
    again = "set log_path to a new directory to start again."
    if not others:
        return f"Nothing was changed. Restore it from a copy, or {again}"
    first = f"resume_from_batch={others[-1]}"
    return f"Nothing was changed. Resume from another with {first} (available: {as_ranges(others)}), or {again}"
