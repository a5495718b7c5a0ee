"""Eight clients train and sample adapters of their own on one `assay serve`, at the same time, against each alone.

    python benchmarks/server_load.py [--clients 8] [--minutes 10] [--out DIR]

Each client is a process of its own with the official SDK, a key, and speaks HTTP: it makes a session with an adapter,
takes optimizer steps on data that no other client has, samples from the new weights after each, saves the state, and
begins again. Before and after that, one process is each of the clients in turn, alone on the server. So every adapter
and every sample of a client must come out as it did alone.

The last line is one JSON object. `mixed` counts adapters whose weights differ by more than 1e-6 from those of the same
client alone, and samples that are not that client's own (other tokens, or log-probabilities more than 1e-3 nats off, up
to where rounding drew another token); `rounded` are samples with such a token. `errors` counts failed episodes.
`speedup` is sampled tokens per second, of all clients together, by those of one alone (training, saving and waiting
included); `speedup_server_cpu` the same per CPU second of the server, which says what batching saves whatever else the
machine does. `rss_growth_mb` is the server's memory in the last tenth of the time against that in the tenth after the
middle, as medians: results are kept for five minutes after they were fetched, so memory rises until then.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import string
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

from assay.backends.config import ScratchModel
from assay.backends.local.models import build_scratch
from assay.envs.base import TokenizerCorpus
from common import machine
from common.served_model import Served, served
from common.server_client import PROMPTS, RANK, SAMPLES, TOKENS, Account, Episode, belongs, play

NAME = "assay/load"
SHAPE = ScratchModel(architecture="qwen3", hidden_size=128, num_layers=4, context_length=256, vocab_size=128)
CORPUS = TokenizerCorpus(["abba"], "[a-z]+", string.printable[:95])
WEIGHT_GAP = 1e-6
WATCH_S = 1.0


class Memory:
    """The server's resident memory, second by second."""

    def __init__(self, server: Served) -> None:
        self._server = server
        self.mb: list[float] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(WATCH_S):
            self.mb.append(self._server.resident_mb())

    def growth_mb(self) -> float:
        """From the tenth of the time after the middle to the last tenth."""
        tenth, half = max(1, len(self.mb) // 10), len(self.mb) // 2
        return statistics.median(self.mb[-tenth:]) - statistics.median(self.mb[half : half + tenth])


def save_model(folder: Path) -> Path:
    """A model with random weights."""
    model, tokenizer = build_scratch(SHAPE, CORPUS, 0)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def weights_differ(server: Served, one: Episode, other: Episode) -> bool:
    """Whether two episodes of a client ended with other adapters."""
    first, second = (load_file(server.weights(episode.weights)) for episode in (one, other))
    gaps = (float(abs(first[name] - second[name]).max()) for name in first)
    return first.keys() != second.keys() or max(gaps) > WEIGHT_GAP


def checked(server: Served, alone: Account, together: Sequence[Account]) -> dict[str, int]:
    """What came out otherwise than alone."""
    own = {episode.client: episode for episode in alone.episodes}
    found = [episode for account in together for episode in account.episodes]
    pairs = [pair for one in found for pair in zip(one.samples, own[one.client].samples, strict=True)]
    other_samples = sum(not belongs(*pair) for pair in pairs)
    other_weights = sum(weights_differ(server, one, own[one.client]) for one in found)
    return {
        "mixed": other_samples + other_weights,
        "rounded": sum(one[0] != alone[0] for one, alone in pairs) - other_samples,
        "adapters": len(found),
        "samples": len(pairs),
    }


def distinct(server: Served, alone: Account) -> bool:
    """Whether clients' adapters differ at all, without which nothing could be seen to be mixed."""
    one, other = alone.episodes[:2]
    return weights_differ(server, one, other)


def measure(server: Served, clients: int, minutes: float) -> dict[str, Any]:
    """Alone, together, alone."""
    # Processes that start from one without threads, which has the SDK imported.
    context = multiprocessing.get_context("forkserver")
    numbers = list(range(clients))
    with ProcessPoolExecutor(clients, mp_context=context) as pool:
        cpu_s, alone = [], []
        for half in (0, 1):
            cpu_s.append(server.cpu_s())
            if half:
                with Memory(server) as memory:
                    until = time.monotonic() + 60 * minutes
                    waits = [pool.submit(play, server.url, NAME, [n], until) for n in numbers]
                    together = [wait.result() for wait in waits]
                cpu_s.append(server.cpu_s())
            alone.append(pool.submit(play, server.url, NAME, numbers, None).result())
            cpu_s.append(server.cpu_s())
    accounts = [*alone, *together]
    errors = [error for account in accounts for error in account.errors]
    if len(alone[0].episodes) < clients or not distinct(server, alone[0]):
        sys.exit(f"the clients alone did not come through, so there is nothing to compare with: {errors[:3]}")
    one, many = rate(alone), rate(together)
    spent = (cpu_s[1] - cpu_s[0]) + (cpu_s[4] - cpu_s[3]), cpu_s[3] - cpu_s[2]
    by_cpu = [sum(map(tokens, of)) / s for of, s in zip((alone, together), spent, strict=True)]
    return {
        "clients": clients,
        **checked(server, alone[0], together),
        "errors": len(errors),
        "first_errors": errors[:3],
        "speedup": many * clients / one,
        "speedup_server_cpu": by_cpu[1] / by_cpu[0],
        "tokens_per_s": {"alone": one, "together": many * clients},
        "tokens_per_server_cpu_s": {"alone": by_cpu[0], "together": by_cpu[1]},
        "rss_growth_mb": memory.growth_mb(),
        "rss_mb": {"begin": memory.mb[0], "end": memory.mb[-1], "most": max(memory.mb)},
    }


def tokens(account: Account) -> int:
    """Sampled by a process."""
    return sum(episode.tokens for episode in account.episodes)


def rate(accounts: Sequence[Account]) -> float:
    """Tokens per second of a process, the mean."""
    return sum(map(tokens, accounts)) / sum(account.ended - account.began for account in accounts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--out", type=Path, help="keep the model and the server's state here")
    args = parser.parse_args()
    if args.clients < 2 or args.minutes <= 0:
        parser.error("--clients must be at least 2, and --minutes above 0")
    with tempfile.TemporaryDirectory(prefix="server_load_") as scratch:
        out = args.out or Path(scratch)
        out.mkdir(parents=True, exist_ok=True)
        with served(save_model(out / "model"), NAME, out / "state") as server:
            found = measure(server, args.clients, args.minutes)
    asked = {"rank": RANK, "prompts": PROMPTS, "samples": SAMPLES, "tokens": TOKENS}
    print(json.dumps(found | {"minutes": args.minutes, "round": asked, "machine": machine("tinker")}))


if __name__ == "__main__":
    main()
