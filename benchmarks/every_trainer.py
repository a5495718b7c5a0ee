"""One environment in every trainer: whether each host is given what Assay's own loop would train on.

python benchmarks/every_trainer.py [--hosts trl cookbook ...] [--plays own guess ...]

A scripted policy plays the same tasks (an own file, a game of several turns, chess, monitor tasks, kernels in two
turns) in Assay's own loop and through each host's own package, which runs in the environment that has it. The last line
is JSON: `hosts`, each with `tasks` (groups that were played), `equal_tokens` (prompts, completions and masks),
`equal_rewards`, `equal_advantages` (null where the host has one advantage per completion, which it computes itself) and
`errored_kept_apart` (of a group in which one rollout could not be scored, that one alone is left out of training); or
`why` it was not measured. A host is a module `benchmarks/hosts/NAME.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from benchmarks.hosts.common import Row, own_cache  # noqa: E402

from support.hosts import PLAYS, in_assays_loop, rows_of  # noqa: E402

ENVIRONMENTS: Mapping[str, str] = {
    "verl": ".venv-verl",
    "verifiers": ".venv-verifiers",
    "trl": ".venv",
    "cookbook": ".venv-hosts",
    "openenv": ".venv-hosts",
}
"""Host -> the folder of the environment that has its package."""
MOST_S = 600.0


def expected(name: str, folder: Path) -> list[list[tuple[float | None, list[Row]]]]:
    """Reward and rows of each rollout of a play in Assay's own loop."""
    groups, credits = in_assays_loop(PLAYS[name], *own_cache(name, folder))
    return [
        [
            (rollout.reward, [Row.of_host(row) for row in rows_of(rollout, credit[place] if credit else None)])
            for place, rollout in enumerate(group.trajectories)
        ]
        for group, credit in zip(groups, credits, strict=True)
    ]


def run(host: str, names: Sequence[str], folder: Path) -> dict[str, Any] | str:
    """What a host's module reports, or why it could not."""
    python = ROOT / ENVIRONMENTS[host] / "bin" / "python"
    if not (ROOT / "benchmarks" / "hosts" / f"{host}.py").exists():
        return f"there is no benchmarks/hosts/{host}.py"
    if not python.exists():
        return f"{ENVIRONMENTS[host]} was not made"
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    environment = {**os.environ, "PYTHONPATH": paths, "XDG_CACHE_HOME": str(folder), "OMP_NUM_THREADS": "1"}
    command = [str(python), "-m", f"benchmarks.hosts.{host}", *names, "--cache", str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=MOST_S)
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["no message"])[-1]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def compared(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """A host's report against Assay's own loop."""
    tokens = rewards = True
    advantages: bool | None = None
    for name, groups in found["plays"].items():
        tokens &= len(groups) == len(wanted[name])
        for group, own_group in zip(groups, wanted[name], strict=False):
            rewards &= [rollout["reward"] for rollout in group] == [reward for reward, _ in own_group]
            for rollout, (_, own_rows) in zip(group, own_group, strict=True):
                rows = own_rows[-1:] if rollout["last_only"] else own_rows
                theirs = [Row(**row) for row in rollout["rows"]]
                tokens &= [streams(row) for row in theirs] == [streams(row) for row in rows]
                for row, own in zip(theirs, rows, strict=False):
                    if row.advantages is not None:
                        equal = singles(row.advantages) == singles(own.advantages or ())
                        advantages = advantages is not False and equal
    return {
        "tasks": sum(map(len, found["plays"].values())),
        "equal_tokens": tokens,
        "equal_rewards": rewards,
        "equal_advantages": advantages,
        "errored_kept_apart": found["kept_apart"] == [False, True, False],
    }


def singles(values: Sequence[float]) -> array[float]:
    """Numbers as float32, which is what a trainer keeps of advantages."""
    return array("f", values)


def streams(row: Row) -> tuple[str, list[int], list[int]]:
    return row.prompt, list(row.response), list(row.mask)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", nargs="+", choices=list(ENVIRONMENTS), default=list(ENVIRONMENTS))
    parser.add_argument("--plays", nargs="+", choices=list(PLAYS), default=list(PLAYS))
    args = parser.parse_args()
    hosts: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["XDG_CACHE_HOME"] = name
        wanted = {play: expected(play, folder) for play in args.plays}
        for host in args.hosts:
            found = run(host, args.plays, folder)
            hosts[host] = {"why": found} if isinstance(found, str) else compared(found, wanted)
            print(f"{host}: {json.dumps(hosts[host])}", flush=True)
    print(json.dumps({"hosts": hosts}))


if __name__ == "__main__":
    main()
