"""One seed per sample, derived from names rather than drawn from a stream.

A sample's randomness is a hash of its place (run seed, split, step, group, sample, turn), so it does not depend on
what else was sampled, and a resumed run draws what the uninterrupted run would have drawn.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from assay.backends.seeds import SEEDS, spread


def derive(*names: int | str) -> int:
    """A 64-bit seed for a path of names: equal paths give equal seeds, different paths independent ones."""
    text = "/".join(f"{type(name).__name__}:{name}" for name in names)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def turn_seed(rollout: Sequence[int | str], turn: int) -> int:
    """The seed of a turn of a rollout, below `SEEDS`.

    That of a group's first rollout decides those of the others, so that a backend may ask for the group in one request.

    Args:
        rollout: the names of the rollout, its number in its group last.
    """
    *group, sample = rollout
    return spread(derive(*group, turn) % SEEDS, int(sample))
