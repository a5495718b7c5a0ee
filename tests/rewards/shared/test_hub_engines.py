"""Engines in eight processes that share one client of a real judge: one limit, and each distinct call paid once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from benchmarks.common.judge_behaviour import Behaviour
from benchmarks.common.judge_server import JudgeServer

CODE = """
import os, sys, time
from pathlib import Path
from assay.rewards import Client, EngineConfig, JudgeConfig, Request, RewardEngine, Sample
from assay.rewards.shared.hub import SharedCaller
from assay.types import Message, Score

class Verdict:
    name, fingerprint = "verdict", "1"
    def requests(self, sample):
        return [Request("judge", (Message("user", sample.response),), {"max_tokens": 5})]
    def score(self, sample, replies):
        return Score("scored", float("True" in replies[0].text))

folder, url, first = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
judge = JudgeConfig(base_url=url, model="judge", api_key_env="")
config = EngineConfig(start_in_flight=8, max_in_flight=16, hedge_fraction=0.0, cache_path=folder / "rewards.sqlite")
caller = SharedCaller(folder / "hub", lambda: Client(judge, config))
with RewardEngine(Verdict(), judge, config, caller=caller) as engine:
    scores = engine.score_many_sync([Sample(f"sample {n}") for n in range(first, first + 60)])
    assert [score.status for score in scores] == ["scored"] * 60
    print(sum(score.usage["calls"] for score in scores))
"""


def test_eight_engines_share_one_limit_and_pay_once(tmp_path: Path) -> None:
    with JudgeServer(Behaviour(latency_s=0.02, max_in_flight=64)) as server:
        children = [
            subprocess.Popen(
                [sys.executable, "-c", CODE, str(tmp_path), server.base_url, str(20 * me)],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for me in range(8)
        ]
        ends = [child.communicate(timeout=60) for child in children]
        assert [child.returncode for child in children] == [0] * 8, ends
        stats = server.stats()
    distinct = 20 * 7 + 60
    assert stats["answered"] == distinct
    assert stats["max_in_flight"] <= 16, "together they have no more in flight than one limit"
    assert sum(float(out) for out, _ in ends) == distinct
