"""The seeds of samples that are asked for together: one for their request, from which each has one of its own.

So a request for several samples of a prompt gives what as many requests for one would have given.
"""

from __future__ import annotations

import hashlib

SEEDS = 2**31
"""Seeds lie below it: the largest that every sampler keeps whole."""


def spread(seed: int, number: int) -> int:
    """The seed of the sample of this number in a request with a seed; the first has the request's own."""
    if not number:
        return seed
    return int.from_bytes(hashlib.blake2b(f"{seed}:{number}".encode(), digest_size=8).digest()) % SEEDS
