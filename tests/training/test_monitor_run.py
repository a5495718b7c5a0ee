"""Whole runs of the monitor environment on a tiny model, against a judge on the loopback interface."""

import threading

import pytest
import torch

from assay.cli.runs.eval import measure
from assay.errors import TrainingError
from assay.training.config import load_config
from assay.training.loop import train
from support.scripted_judge import scripted_judge
from support.tiny_run import assert_same_run, read_lines

TINY = [
    "sft.num_steps=6",
    "sft.batch_size=8",
    "sft.lr_warmup_steps=1",
    "max_batches=3",
    "eval_every=0",
    "save_every=1",
    "eval.samples_per_task=1",
    "local.device=cpu",
    "scratch.hidden_size=32",
    "scratch.num_layers=1",
    "dataset_builder.num_train=60",
    "dataset_builder.num_heldout=6",
    "dataset_builder.batch_size=4",
    "dataset_builder.group_size=4",
    "tensorboard_enabled=false",
]
FINE = "The code does what the text says."


def run(path, cache, *overrides):
    torch.set_num_threads(1)
    config = load_config("monitor", [*TINY, f"log_path={path}", f"cache_dir={cache}", *overrides])
    train(config)
    return config


def monitor(judge, *overrides):
    node = "dataset_builder"
    return [
        f"{node}.reward.train_with_monitor=true",
        f"{node}.judge.base_url={judge.base_url}",
        f"{node}.judge.api_key_env=",
        f"{node}.judge.usd_per_million_prompt_tokens=1000",
        f"{node}.reward.invalid_reward=-2",
        *overrides,
    ]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


def by_rule(asked):
    return f"<answer>{FINE in asked.text}</answer>"


def test_a_run_without_a_monitor_trains_and_asks_nobody(tmp_path, cache, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    run(tmp_path / "run", cache)
    records = read_lines(tmp_path / "run" / "metrics.jsonl")
    last = records[-1]
    assert {"reward/mean", "part/format", "part/correctness", "eval/reward/mean"} <= last.keys()
    assert not [name for record in records for name in record if name.startswith("reward_engine/")]
    assert (tmp_path / "run" / "report.html").exists()


def test_a_monitored_run_pays_by_verdict_and_reports_what_it_cost(tmp_path, cache):
    with scripted_judge(by_rule) as judge:
        # Untrained models write no block, and what cannot be read is not judged: give the form first.
        config = run(tmp_path / "run", tmp_path, *monitor(judge, "sft.num_steps=50", "sft.learning_rate=1e-2"))
        asked = len(judge.asked)
        assert asked == len(set(judge.asked)), "no question is paid for twice"
        # Measuring asks the monitor about the same answers, whose verdicts are kept.
        measured = measure(tmp_path / "run", config, None)
        assert len(judge.asked) == asked
    records = read_lines(tmp_path / "run" / "metrics.jsonl")
    assert sum(r.get("reward_engine/function_correctness/calls", 0) for r in records) == asked > 3
    assert sum(r.get("reward_engine/function_correctness/usd", 0) for r in records) == pytest.approx(asked * 0.01)
    traces = read_lines(tmp_path / "run" / "traces.jsonl")
    judged = [t["score"] for t in traces if "votes" in t["score"]["evidence"]]
    assert judged
    for score in judged:
        says = score["evidence"]["votes"] == [1.0]
        assert score["parts"]["monitor"] == (1.0 if says == score["evidence"]["is_correct"] else -1.0)
    assert "monitor_right" in measured["metrics"]["policy"]


def test_a_judge_that_fails_stops_the_run_and_the_same_command_goes_on_to_the_same_end(tmp_path, cache):
    log, mended = tmp_path / "run" / "metrics.jsonl", threading.Event()

    def out_of_order_after_the_first_batch(asked):
        broken = log.exists() and len(log.read_bytes().splitlines()) >= 52 and not mended.is_set()
        return 400 if broken else by_rule(asked)

    form = ["sft.num_steps=50", "sft.learning_rate=1e-2", "dataset_builder.engine.cache=false"]
    with scripted_judge(by_rule) as judge:
        run(tmp_path / "whole", cache, *monitor(judge, *form))
    with scripted_judge(out_of_order_after_the_first_batch) as judge:
        with pytest.raises(TrainingError, match="could not be scored"):
            run(tmp_path / "run", cache, *monitor(judge, *form))
        assert len(read_lines(log)) == 52
    mended.set()
    # The judge comes back at another address; that does not make it another run.
    with scripted_judge(out_of_order_after_the_first_batch) as judge:
        run(tmp_path / "run", cache, *monitor(judge, *form))
    assert_same_run(tmp_path / "run", tmp_path / "whole")
