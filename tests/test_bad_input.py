"""What can be wrong with a run's input, through the command line: one clear message, and nothing is lost.

Commands run in this process, or in a fork of it where they must be limited or interrupted.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import resource
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from assay.cli import main as cli
from assay.config import resolved
from assay.training.config import TrainingConfig, load_config
from support.tiny_run import SFT_STEPS, assert_same_run, kill, run, snapshot, steps, tiny

POLICY = "dataset_builder.task=policy"
ARBITER = "dataset_builder.task=arbiter"
CHESS = {
    "model_name": "scratch",
    "lora_rank": 0,
    "max_tokens": 8,
    "local.device": "cpu",
    "scratch": {"hidden_size": 32, "num_layers": 1, "context_length": 128},
    "eval.samples_per_task": 1,
    "dataset_builder": {"type": "chess", "num_train": 4, "num_heldout": 2, "batch_size": 2, "group_size": 2},
}

Refuse = Callable[..., str]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def write(path: Path, settings: dict[str, Any]) -> str:
    path.write_text(yaml.safe_dump(settings), encoding="utf-8")
    return str(path)


@pytest.fixture
def chess(tmp_path: Path) -> list[str]:
    """Arguments of a small chess run in `tmp_path`."""
    settings = {**CHESS, "log_path": str(tmp_path / "run"), "cache_dir": str(tmp_path / "cache")}
    return ["--config", write(tmp_path / "chess.yaml", settings)]


def toy(path: Path, **changes: Any) -> list[str]:
    """Arguments that give `tiny(path)`; the config file lies beside the run."""
    file = path.parent / f"{path.name}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    return ["--config", write(file, {**resolved(tiny(path)), **changes})]


@pytest.fixture
def refuse(capsys: pytest.CaptureFixture[str]) -> Refuse:
    """Run `assay` with arguments that must be refused; returns the message."""

    def run_refused(*arguments: str, status: int = 1) -> str:
        capsys.readouterr()
        assert cli.main(list(arguments)) == status
        return only_message(capsys.readouterr().err)

    return run_refused


def only_message(stderr: str) -> str:
    """The message of an error, after making sure that it is the only one and no traceback."""
    assert "Traceback" not in stderr
    messages = re.findall(r"^error: (.*(?:\n.*)*)", stderr, re.MULTILINE)
    assert len(messages) == 1, stderr
    assert "\nerror: " not in messages[0]
    return str(messages[0]).strip()


# Settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"dataset_builder": {"type": "chess", "batchsize": 4}},
            "dataset_builder.batchsize .*Did you mean .*batch_size",
        ),
        ({"sft": {"num_steps": "many"}}, r"sft\.num_steps=many .*: expected a whole number"),
        ({"seed": -5}, r"seed=-5 must be at least 0"),
        ({"seed": 10**30}, r"seed=10{30} must be at most 9223372036854775807"),
        ({"sft.num_steps": True}, r"sft\.num_steps=true .*: expected a whole number"),
        ({"max_errored_fraction": 2}, "max_errored_fraction=2.0 must be at most 1"),
        ({"scratch.num_heads": 0}, r"scratch\.num_heads=0 must be at least 1"),
        ({"scratch.hidden_size": 30}, r"scratch\.num_heads=4 does not divide scratch\.hidden_size=30"),
        ({"scratch.context_length": 4}, r"scratch\.context_length=4 must be at least 16"),
        ({"scratch.initializer_range": 0}, r"scratch\.initializer_range=0.0 must be above 0"),
        ({"backend": "tinker"}, "lora_rank=0 with backend=tinker: the Tinker API trains adapters alone"),
        ({"loss_fn_config": {"clip": 1}}, "loss_fn_config sets clip, which importance_sampling does not read"),
    ],
)
def test_settings_are_refused_before_anything_is_written(
    chess: list[str], tmp_path: Path, refuse: Refuse, settings: dict[str, Any], message: str
) -> None:
    more = write(tmp_path / "more.yaml", settings)
    assert re.search(message, refuse("train", *chess, "--config", more, status=2))
    assert not (tmp_path / "run").exists()


def test_the_hosted_backend_needs_a_key_before_anything_is_sent(
    chess: list[str], refuse: Refuse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    settings = ["backend=tinker", "lora_rank=8", "model_name=Qwen/Qwen3-8B", "base_url=https://gpu.invalid/api"]
    message = refuse("train", *chess, *settings, status=2)
    assert "\n" not in message and "TINKER_API_KEY is not set" in message and "nothing was sent" in message


# Models


def pretrained(path: Path, model: Path) -> list[str]:
    """Arguments of a toy run over a model folder."""
    return toy(path, model_name=str(model), scratch=resolved(TrainingConfig())["scratch"])


def test_a_missing_model_folder(tmp_path: Path, refuse: Refuse) -> None:
    missing = tmp_path / "models" / "none"
    message = refuse("train", *pretrained(tmp_path / "run", missing))
    assert f"model_name={missing} is not a folder. Give a folder with config.json and weights" in message
    # Nothing was committed, so the same directory serves the corrected command.
    assert cli.main(["train", *toy(tmp_path / "run", max_batches=0)]) == 0


def test_a_folder_that_holds_no_model(tmp_path: Path, refuse: Refuse) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"model_type": "unheard-of"}')
    message = refuse("train", *pretrained(tmp_path / "run", tmp_path / "model"))
    assert "must be a folder with a Hugging Face causal LM" in message


def test_adapters_over_a_model_from_scratch(chess: list[str], refuse: Refuse) -> None:
    assert "a random base cannot be adapted by LoRA" in refuse("train", *chess, "lora_rank=8", status=2)


def test_a_checkpoint_to_start_from_that_is_none(tmp_path: Path, refuse: Refuse) -> None:
    arguments = pretrained(tmp_path / "run", Path("scratch"))
    message = refuse("train", *arguments, f"load_checkpoint_path={tmp_path}")
    assert f"{tmp_path} has no manifest.json: it is not a checkpoint of a run" in message
    message = refuse("train", *arguments, f"load_checkpoint_path={tmp_path / 'none'}")
    assert f"Checkpoint {tmp_path / 'none'} does not exist" in message


def test_a_renderer_that_the_tokenizer_cannot_serve(tmp_path: Path, refuse: Refuse) -> None:
    message = refuse("train", *toy(tmp_path / "run"), "dataset_builder.renderer_name=chat", status=2)
    assert "needs a tokenizer with a chat template" in message


def test_prompts_that_leave_no_room_for_an_answer(chess: list[str], refuse: Refuse) -> None:
    message = refuse("train", *chess, ARBITER, "scratch.context_length=16")
    assert re.search(r"A prompt has \d+ tokens and the model's context is 16", message)


def test_a_learning_rate_that_destroys_the_policy(tmp_path: Path, refuse: Refuse) -> None:
    arguments = toy(tmp_path / "run", sft={"num_steps": 0})
    message = refuse("train", *arguments, "learning_rate=1e30")
    assert "log-probabilities that are not finite: after 1 optimizer steps" in message
    assert "Start a new run with a lower learning_rate" in message
    assert steps(tmp_path / "run") == [-1, 0]


# The engine


def engine(path: Path, script: str) -> str:
    path.write_text(script)
    path.chmod(0o755)
    return f"dataset_builder.stockfish.path={path}"


def test_a_missing_engine(chess: list[str], tmp_path: Path, refuse: Refuse) -> None:
    message = refuse("train", *chess, POLICY, f"dataset_builder.stockfish.path={tmp_path / 'none'}")
    assert f"dataset_builder.stockfish.path='{tmp_path / 'none'}' is not an executable file" in message
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "script", ["#!/bin/sh\nexit 7\n", "#!/bin/sh\necho uciok\nread x\nread x\nexit 7\n", "not a program"]
)
def test_an_engine_that_dies(chess: list[str], tmp_path: Path, refuse: Refuse, script: str) -> None:
    impatient = "dataset_builder.stockfish.deadline_s=0.5"
    message = refuse("train", *chess, POLICY, engine(tmp_path / "engine", script), impatient)
    assert str(tmp_path / "engine") in message
    assert not (tmp_path / "run/checkpoints").exists(), "an evaluation without verdicts is not committed"


# Position files

ENDGAME = "4k3/8/8/8/8/8/4P3/4K3 w - - 0 1"


@pytest.mark.parametrize(
    ("kind", "text", "finding"),
    [
        ("fen", f"{ENDGAME}\n4k3/9/8 w - -\n", "positions.fen, line 2: not a FEN with six fields: '4k3/9/8 w - -'"),
        ("fen", f"{ENDGAME}\n8/8/8/8/8/8/8/4K3 w - - 0 1\n", "positions.fen, line 2: an impossible position"),
        ("pgn", '[Event "x"]\n\n1. e4 e4 *\n', "positions.pgn, line 1: in the game that starts here: illegal san"),
        ("pgn", "\xff\x00", "positions.pgn, line 1"),
        ("epd", "nonsense w - -\n", "positions.epd, line 1"),
        ("openings", "eco\tname\n", "positions.openings, line 1"),
        ("fen", None, "cannot read the fen file"),
    ],
)
def test_a_malformed_position_file(
    chess: list[str], tmp_path: Path, refuse: Refuse, kind: str, text: str | None, finding: str
) -> None:
    path = tmp_path / f"positions.{kind}"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    source = [f"dataset_builder.source={kind}", f"dataset_builder.source_path={path}"]
    assert finding in refuse("train", *chess, ARBITER, *source)
    assert not (tmp_path / "run").exists()


# The disk


def in_fork(work: Callable[[], int], stderr: Path) -> int:
    """Exit status of `work` in a process of its own, whose standard error goes to a file."""

    def child() -> None:
        with open(stderr, "w") as file, contextlib.redirect_stderr(file):
            status = work()
        os._exit(status)

    if torch.cuda.is_available():
        pytest.skip("a process that ran a backward pass on a GPU cannot be forked and train")
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(60)
    assert process.exitcode is not None
    return process.exitcode


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run that was left alone. Do not change it."""
    path = tmp_path_factory.mktemp("reference") / "run"
    run(tiny(path))
    return path


@pytest.mark.parametrize("limit", [1_000, 40_000, 100_000])
def test_a_full_disk(tmp_path: Path, reference: Path, limit: int) -> None:
    path = tmp_path / "run"
    arguments = ["train", *toy(path)]

    def limited() -> int:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        return cli.main(arguments)

    assert in_fork(limited, tmp_path / "stderr") == 1
    message = only_message((tmp_path / "stderr").read_text())
    assert re.match(r"No room to write .*Free space there, then run the same command again", message)
    assert cli.main(arguments) == 0
    assert_same_run(path, reference)


def test_a_full_disk_while_weights_are_written_leaves_no_half_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "run"
    arguments = ["train", *toy(path)]

    def limited() -> int:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        return cli.main(arguments)

    assert in_fork(limited, tmp_path / "stderr") == 1
    assert "No room to write checkpoint sft_000003" in (tmp_path / "stderr").read_text()
    assert [p.name for p in (path / "checkpoints").iterdir()] == ["start"]


@pytest.mark.parametrize("place", ["file/run", "file"])
def test_a_run_directory_that_cannot_be_made(tmp_path: Path, refuse: Refuse, place: str) -> None:
    (tmp_path / "file").write_text("precious")
    arguments = toy(tmp_path / "somewhere", log_path=str(tmp_path / place))
    message = refuse("train", *arguments)
    assert "Set log_path to" in message and str(tmp_path / place) in message
    assert (tmp_path / "file").read_text() == "precious"


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Path]:
    """A small file system of its own, with its mount point."""
    point = tmp_path / "mount"
    point.mkdir()
    try:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(point)], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("mounting a file system is not permitted here")
    yield point
    subprocess.run(["umount", "-l", str(point)], check=True)


def remount(point: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", str(point)], check=True, capture_output=True)


def test_a_read_only_run_directory(mount: Path, tmp_path: Path, reference: Path, refuse: Refuse) -> None:
    new = toy(tmp_path / "new", log_path=str(mount / "new"))
    arguments = toy(tmp_path / "run", log_path=str(mount / "run"))
    kill(load_config(arguments[1]), "assay.grpo.trainer", "GRPOTrainer.update", 4)
    before = snapshot(mount / "run")
    remount(mount, "ro")
    for refused in (new, arguments):
        message = refuse("train", *refused)
        assert "Read-only file system" in message and "Set log_path to a folder that" in message
    assert snapshot(mount / "run") == before
    remount(mount, "rw")
    assert cli.main(["train", *arguments]) == 0
    assert_same_run(mount / "run", reference)


# The run directory's content


@pytest.fixture(scope="module")
def killed_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run killed in its fourth RL batch, with checkpoints up to the second. Do not change it."""
    path = tmp_path_factory.mktemp("killed") / "run"
    kill(tiny(path), "assay.grpo.trainer", "GRPOTrainer.update", 4)
    return path


@pytest.fixture
def killed(killed_once: Path, tmp_path: Path) -> TrainingConfig:
    """A copy of that run."""
    shutil.copytree(killed_once, tmp_path / "run")
    return load_config(toy(tmp_path / "run")[1])


@pytest.mark.parametrize(
    ("file", "damage", "finding"),
    [
        ("policy/model/model.safetensors", lambda d: d[: len(d) // 2], "instead of .*only partly written or copied"),
        ("policy/optimizer.pt", lambda d: b"", "has 0 bytes instead of"),
        ("policy/optimizer.pt", lambda d: d[:-1] + b"?", "was changed after it was written"),
        ("policy/backend.json", None, "is missing"),
        ("manifest.json", lambda d: d[:50], "cannot be read"),
        ("manifest.json", None, "has no manifest.json"),
    ],
)
def test_a_half_written_checkpoint(
    killed: TrainingConfig,
    tmp_path: Path,
    refuse: Refuse,
    file: str,
    damage: Callable[[bytes], bytes] | None,
    finding: str,
) -> None:
    path = killed.log_path / "checkpoints" / "rl_000002" / file
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage(path.read_bytes()))
    before = snapshot(killed.log_path)
    message = refuse("train", "--config", str(tmp_path / "run.yaml"))
    assert re.search(finding, message) and str(killed.log_path / "checkpoints/rl_000002") in message
    assert "Nothing was changed. Resume from another with resume_from_batch=0 (available: 0)" in message
    assert snapshot(killed.log_path) == before


@pytest.mark.parametrize("file", ["policy/model/model.safetensors", "manifest.json"])
def test_a_run_goes_on_from_the_checkpoint_before_one_that_is_damaged(
    killed: TrainingConfig, tmp_path: Path, reference: Path, file: str
) -> None:
    (killed.log_path / "checkpoints" / "rl_000002" / file).write_bytes(b"half")
    assert cli.main(["train", "--config", str(tmp_path / "run.yaml")]) == 1
    assert cli.main(["train", "--config", str(tmp_path / "run.yaml"), "resume_from_batch=0"]) == 0
    assert_same_run(killed.log_path, reference)


def test_changed_settings(killed: TrainingConfig, tmp_path: Path, reference: Path, refuse: Refuse) -> None:
    before = snapshot(killed.log_path)
    again = ["train", "--config", str(tmp_path / "run.yaml")]
    message = refuse(*again, "learning_rate=0.5", "dataset_builder.group_size=8")
    assert "\n  dataset_builder.group_size: 4 -> 8\n  learning_rate: 0.005 -> 0.5\n" in message
    assert "Set log_path to a new directory for the new settings, or use the original ones" in message
    assert snapshot(killed.log_path) == before
    assert cli.main([*again, "wandb_name=null"]) == 0
    assert_same_run(killed.log_path, reference)


def test_a_directory_that_holds_something_else(tmp_path: Path, refuse: Refuse) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("precious")
    message = refuse("train", *toy(tmp_path / "run", log_path=str(tmp_path / "thesis")))
    assert "is not a run directory and not empty (it holds chapter.tex)" in message
    assert [p.name for p in (tmp_path / "thesis").iterdir()] == ["chapter.tex"]


def test_a_run_without_its_ledger_is_not_started_over(killed: TrainingConfig, tmp_path: Path, refuse: Refuse) -> None:
    (killed.log_path / "ledger.jsonl").unlink()
    before = snapshot(killed.log_path)
    message = refuse("train", "--config", str(tmp_path / "run.yaml"))
    assert "holds checkpoints (rl_000002, sft_000003, sft_000006) but no ledger.jsonl" in message
    assert f"load_checkpoint_path={killed.log_path / 'checkpoints'}" in message
    assert snapshot(killed.log_path) == before


@pytest.mark.parametrize("command", [["eval", "--run"], ["score", "--run"], ["show"], ["export"]])
@pytest.mark.parametrize("damage", ["missing", "file", "config", "ledger", "records"])
def test_a_command_on_a_run_that_is_not_whole(
    killed: TrainingConfig, tmp_path: Path, refuse: Refuse, command: list[str], damage: str
) -> None:
    path, target = killed.log_path, [str(tmp_path / "out")] if command[0] == "export" else []
    if damage == "missing":
        shutil.rmtree(path)
    elif damage == "file":
        shutil.rmtree(path)
        path.write_text("not a run")
    elif damage == "config":
        (path / "config.json").write_text("[1]")
    elif damage == "ledger":
        (path / "ledger.jsonl").unlink()
        (path / "ledger.jsonl").mkdir()
    else:
        for name in ("traces.jsonl", "metrics.jsonl"):
            (path / name).write_text("[1]\n" + (path / name).read_text())
    if (command[0], damage) in (("eval", "records"), ("show", "config")):
        return  # they do not read these
    status = 2 if damage == "config" else 1
    message = refuse(*command, str(path), *target, status=status)
    assert str(path) in message and not (tmp_path / "out").exists()


def test_a_batch_that_has_no_checkpoint(killed: TrainingConfig, tmp_path: Path, refuse: Refuse) -> None:
    before = snapshot(killed.log_path)
    message = refuse("train", "--config", str(tmp_path / "run.yaml"), "resume_from_batch=5")
    assert "no checkpoint of RL batch 5 to resume from. Batches with a checkpoint: 0, 2." in message
    assert snapshot(killed.log_path) == before


@pytest.mark.parametrize("arguments", [["--run", "none"], ["--run", "run", "--batch", "3"]])
def test_a_measurement_of_what_is_not_there(
    killed: TrainingConfig,
    tmp_path: Path,
    refuse: Refuse,
    arguments: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    before = snapshot(killed.log_path)
    assert re.search("is not a run|no checkpoint of RL batch 3", refuse("eval", *arguments))
    assert snapshot(killed.log_path) == before


# An interrupt


def test_an_interrupted_run_says_how_to_go_on_and_loses_nothing(tmp_path: Path, reference: Path) -> None:
    path = tmp_path / "run"
    arguments = ["train", *toy(path)]

    def interrupted() -> int:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        from assay.grpo.trainer import GRPOTrainer

        update, calls = GRPOTrainer.update, 0

        def interrupt(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == 4:
                os.kill(os.getpid(), signal.SIGINT)
            return update(*args, **kwargs)

        GRPOTrainer.update = interrupt  # type: ignore[method-assign]
        return cli.main(arguments)

    assert in_fork(interrupted, tmp_path / "stderr") == 130
    stderr = (tmp_path / "stderr").read_text()
    assert f"when the same command is given: assay train --config {tmp_path / 'run.yaml'}" in stderr
    assert "Traceback" not in stderr
    assert steps(path) and steps(path)[-1] >= SFT_STEPS
    assert cli.main(arguments) == 0
    assert_same_run(path, reference)
