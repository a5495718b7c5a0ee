"""What a new user types, from a wheel, in another directory: a file is begun, checked, trained, read and exported."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest

from assay.cli.options import config_of
from assay.envs.base import build_data
from assay.training.run.checkpoints import checkpoint_folder
from assay.training.run.reader import find_checkpoint
from assay.training.session import make_backend
from assay.types import SamplingParams
from support import plain_transformers
from support.tiny_run import assert_same_run, read_lines
from support.warm_process import run_warm
from support.wheel import InstalledAssay, install

STEPS = 8
SHORT = [
    "dataset_builder=mine.py:Mine",
    "dataset_builder.batch_size=4",
    "dataset_builder.group_size=4",
    "scratch.hidden_size=16",
    "scratch.num_layers=1",
    "scratch.num_heads=2",
    f"max_batches={STEPS}",
    "save_every=2",
    "eval_every=4",
    "local.device=cpu",
]


@pytest.fixture(scope="module")
def assay(tmp_path_factory: pytest.TempPathFactory) -> InstalledAssay:
    """The program, in a folder in which `assay init` has written a file, and a run that was killed and went on."""
    place = tmp_path_factory.mktemp("place")
    program = InstalledAssay(install(tmp_path_factory.mktemp("installed")), place)
    program("init", "mine.py")
    program.kill("train", *SHORT, "log_path=run", run=place / "run", steps=5)
    _, err = program("train", *SHORT, "log_path=run", warm=True)
    assert "Resuming after step" in err
    return program


def test_init_does_not_write_over_a_file(assay: InstalledAssay) -> None:
    before = (assay.place / "mine.py").read_text()
    _, err = assay("init", "mine.py", status=2)
    assert err.startswith("error: ") and err.count("\n") == 1
    assert (assay.place / "mine.py").read_text() == before


def test_check_finds_nothing_wrong_with_what_init_wrote(assay: InstalledAssay) -> None:
    out, _ = assay("check", "mine.py:Mine")
    assert "Nothing wrong was found." in out


def test_check_finds_a_score_that_likes_everything(assay: InstalledAssay) -> None:
    text = (assay.place / "mine.py").read_text()
    (assay.place / "kind.py").write_text(text.replace("return text.strip() == task.answer", "return 1.0"))
    out, _ = assay("check", "kind.py:Mine", status=3)
    assert "constant" in out or "as high as" in out


@pytest.mark.timeout(300)
def test_a_run_that_was_killed_equals_one_that_was_not(assay: InstalledAssay) -> None:
    assay("train", *SHORT, "log_path=whole", warm=True)
    assert_same_run(assay.place / "run", assay.place / "whole")
    assert sum("reward/mean" in line for line in read_lines(assay.place / "run" / "metrics.jsonl")) == STEPS


def test_eval_measures_the_last_checkpoint(assay: InstalledAssay) -> None:
    measured = json.loads(assay("eval", "--run", "run", warm=True)[0])
    assert measured["checkpoint"] == f"rl_{STEPS:06d}"
    assert 0 <= measured["metrics"]["policy"]["reward"]["mean"] <= 1


def test_score_judges_a_run_again(assay: InstalledAssay) -> None:
    again = json.loads(assay("score", "--run", "run")[0])
    assert again["rollouts"] > 0 and again["changed"] == 0 and again["errored"] == 0


def test_show_prints_answers_with_their_rewards(assay: InstalledAssay) -> None:
    out, _ = assay("show", "run", "--limit", "1")
    assert re.search(r"^\s+#0\s+reward [01]", out, re.MULTILINE)
    records = [json.loads(line) for line in assay("show", "run", "--step", "4", "--json")[0].splitlines()]
    assert records


def test_report_and_page_are_written(assay: InstalledAssay) -> None:
    for command, file in (("report", "report.html"), ("view", "view.html")):
        assay(command, "run")
        assert "<html" in (assay.place / "run" / file).read_text()


def test_compare_says_whether_a_gain_is_noise(assay: InstalledAssay) -> None:
    out, _ = assay("compare", "run")
    assert out.startswith("before: evaluated before training on ")
    assert re.search(r"^\s+reward\s+\d\.\d+", out, re.MULTILINE)


@pytest.mark.timeout(300)
def test_the_exported_folder_generates_the_same_tokens_in_transformers(
    assay: InstalledAssay, monkeypatch: pytest.MonkeyPatch
) -> None:
    assay("export", "run", "--merge", "model", warm=True)
    prompts = ["3,4:", "9,1:", "0,0:"]
    request = {"model": {"prompts": prompts, "max_tokens": 2}}
    done = run_warm([plain_transformers.__file__], assay.place, assay.environment, json.dumps(request))
    assert done.returncode == 0, done.stderr
    theirs = json.loads(done.stdout.splitlines()[-1])["model"]
    assert not theirs["assay"], "the folder is loaded without Assay"
    monkeypatch.chdir(assay.place)
    assert [answer["tokens"] for answer in theirs["answers"]] == asyncio.run(greedy(Path("run"), prompts))


async def greedy(run: Path, prompts: list[str]) -> list[list[int]]:
    """The likeliest two tokens after each prompt, by the run's last checkpoint."""
    config = config_of(run, [])
    data = build_data(config.active_builder, config.build_context())
    backend = await make_backend(config, data, checkpoint_folder(run, find_checkpoint(run)).joinpath("policy"))
    ids = [backend.tokenizer.encode(prompt, add_special_tokens=False) for prompt in prompts]
    params = SamplingParams(2, temperature=1.0, top_k=1, stop=(backend.tokenizer.eos_token_id,))
    return [list(c.tokens) for c in await backend.sample(ids, params, list(range(len(ids))))]
