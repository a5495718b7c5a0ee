"""A backend of the user's own, by reference: trained and resumed through the command line, refused where it is none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import yaml

from assay.backends.named import BACKEND
from assay.cli.main import main as assay
from assay.config import resolved
from assay.plugins import find
from assay.training.config import SFTConfig, load_config
from support.losses import own_loss
from support.tiny_run import assert_same_run, final_weights, kill, read_lines, tiny

WRAPPED = '''
"""The local backend behind a door that counts who goes through."""
from dataclasses import replace
from pathlib import Path

from assay.backends.local.backend import open_backend

LOG = Path(__file__).with_suffix(".log")


class Counting:
    def __init__(self, inner, policy):
        self.inner = inner
        self.capabilities = replace(inner.capabilities, losses=frozenset({"ppo"}), own_losses=False)
        self.note(f"open {policy.model_name} seed {policy.seed}")

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def note(self, text):
        with LOG.open("a") as log:
            log.write(text + chr(10))

    async def optim_step(self, params):
        self.note("step")
        return await self.inner.optim_step(params)


async def open(policy, data, resume):
    return Counting(await open_backend(policy, data, resume), policy)


def not_async(policy, data, resume):
    return None


async def too_few(policy, data):
    return None


async def nothing(policy, data, resume):
    return object()
'''


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "own_backend.py"
    path.write_text(WRAPPED, encoding="utf-8")
    return path


def settings(path: Path, **changes: object) -> list[str]:
    """Arguments of a run of two steps on the toy environment; its config file lies beside the run."""
    config = tiny(path, loss_fn="ppo", sft=SFTConfig(num_steps=0), max_batches=2, save_every=1)
    source = path.with_suffix(".yaml")
    source.write_text(yaml.safe_dump({**resolved(config), **changes}), encoding="utf-8")
    return ["--config", str(source)]


def test_a_backend_in_a_file_trains_and_resumes(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert assay(["train", *settings(tmp_path / "whole"), "backend=own_backend.py:open"]) == 0
    log = file.with_suffix(".log")
    assert log.read_text().splitlines() == ["open scratch seed 0", "step", "step"]
    assert json.loads((tmp_path / "whole/config.json").read_text())["backend"] == f"{file}:open"
    kill(
        load_config(settings(tmp_path / "run")[1], [f"backend={file}:open"]),
        "assay.grpo.trainer",
        "GRPOTrainer.update",
        2,
    )
    assert len(read_lines(tmp_path / "run/checkpoints.jsonl")) == 2
    monkeypatch.chdir("/")
    assert assay(["train", *settings(tmp_path / "run"), f"backend={file}:open"]) == 0
    assert_same_run(tmp_path / "run", tmp_path / "whole")
    assert log.read_text().splitlines()[3:] == ["open scratch seed 0", "step", "open scratch seed 0", "step"]
    assert assay(["train", *settings(tmp_path / "local")]) == 0
    assert final_weights(tmp_path / "local") == final_weights(tmp_path / "whole")


def test_a_dry_run_opens_it_and_asks_for_no_samples(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paid = "    async def sample(self, *asked):\n        raise AssertionError('this costs money')\n\n"
    step = "    async def optim_step"
    file.write_text(WRAPPED.replace(step, paid + step), encoding="utf-8")
    assert assay(["train", *settings(tmp_path / "run"), f"backend={file}:open", "--dry-run"]) == 0
    assert "Time: not estimated" in capsys.readouterr().out
    assert file.with_suffix(".log").read_text().splitlines() == ["open scratch seed 0"]
    assert not (tmp_path / "run").exists()


def test_it_can_start_from_a_checkpoint(file: Path, tmp_path: Path) -> None:
    assert assay(["train", *settings(tmp_path / "first"), f"backend={file}:open"]) == 0
    start = tmp_path / "first/checkpoints/rl_000002"
    assert assay(["train", *settings(tmp_path / "next", load_checkpoint_path=str(start)), f"backend={file}:open"]) == 0
    weights = "policy/model/model.safetensors"
    assert (tmp_path / "next/checkpoints/start" / weights).read_bytes() == (start / weights).read_bytes()


def test_what_it_cannot_compute_is_refused_before_the_first_step(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = own_loss(tmp_path)
    assert assay(["train", *settings(tmp_path / "run"), f"backend={file}:open", f"loss_fn={own}"]) == 2
    error = capsys.readouterr().err
    assert (
        f"backend={file}:open computes only losses that it knows by name. Set backend=local, or loss_fn to one of ppo"
        in error
    )
    assert not (tmp_path / "run/ledger.jsonl").exists() or not (tmp_path / "run/ledger.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("backend", "message"),
    [
        ("{file}:not_async", "it is not async. A backend is opened by `async def open(policy, data, resume)`."),
        ("{file}:too_few", "has the signature (policy, data): too many positional arguments."),
        ("{file}:Counting", "and Counting is a class (Counting). It has open, not_async, too_few, nothing."),
        (
            "{file}:nothing",
            "opened a object, which is not a backend: it lacks capabilities, close, context_length,",
        ),
        ("remote", "looked for a backend of this name among local, tinker. One of your own is written"),
    ],
)
def test_what_is_no_backend_is_refused(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], backend: str, message: str
) -> None:
    assert assay(["train", *settings(tmp_path / "run"), f"backend={backend.format(file=file)}"]) == 2
    error = capsys.readouterr().err
    (line,) = [line for line in error.splitlines() if line.startswith("error: ")]
    assert message in line


def test_the_names_of_backends_lead_to_functions_that_open_them() -> None:
    for name in BACKEND.known:
        assert BACKEND.fits(find(name, BACKEND, "backend"))
