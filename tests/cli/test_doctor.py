"""`assay doctor`: rows with cures, an exit status, JSON, and no secret."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from assay.backends.config import LocalBackend, ScratchModel
from assay.backends.local.hardware import checks as device_checks
from assay.cli import main as cli
from assay.cli.doctor import table
from assay.config import resolved
from assay.envs.chess.engine.engine_check import engine_check
from assay.envs.chess.engine.stockfish import StockfishConfig
from assay.rewards.client.resources import key_check
from assay.rewards.config import JudgeConfig
from assay.storage.files import disk_check
from assay.training.examine import _judge_check
from assay.types import Check
from support.chat_templates import chat_model
from support.tiny_run import tiny


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def doctor(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    capsys.readouterr()
    status = cli.main(["doctor", *arguments])
    return status, capsys.readouterr().out


def rows(out: str) -> dict[str, Check]:
    return {row["name"]: Check(**row) for row in json.loads(out)}


def test_the_machine_is_looked_over_and_no_key_is_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    status, out = doctor(capsys, "--json")
    found = rows(out)
    assert {"versions", "device", "engine", "compiler: CUDA", "compiler: Triton", "API key"} <= found.keys()
    assert {"disk: runs", "disk: caches"} <= found.keys() and any(name.startswith("sandbox") for name in found)
    assert found["API key"].ok and "secret" not in out
    assert status == (0 if all(row.ok for row in found.values()) else 3)
    assert all(row.cure for row in found.values() if not row.ok)


def test_a_machine_without_a_judges_key_is_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    found = _judge_check()
    assert found.ok and "OPENAI_API_KEY holds no API key" in found.found and "only runs that ask a judge" in found.found
    assert not key_check(JudgeConfig()).ok, "a run that asks one fails"


@pytest.mark.parametrize(("package", "row", "extra"), [("chess", "engine", "chess"), ("torch", "versions", "torch")])
def test_a_package_that_is_not_installed_is_a_row_and_not_the_end(package: str, row: str, extra: str) -> None:
    code = (
        "import sys, importlib.abc\n"
        "class Hidden(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.partition('.')[0] == {package!r}:\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Hidden())\n"
        "from assay.cli import main\nsys.exit(main.main(['doctor', '--json']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    found = rows(done.stdout)
    assert done.returncode == 3 and not done.stderr
    assert not found[row].ok and package in found[row].found
    assert extra in found[row].cure and "disk: caches" in found


def test_a_run_is_asked_only_for_what_it_needs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = chat_model(tmp_path / "model", "qwen3")
    config = tiny(tmp_path / "run", model_name=str(model), scratch=ScratchModel())
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(resolved(config)))
    status, out = doctor(capsys, "--config", str(tmp_path / "run.yaml"), "--json")
    found = rows(out)
    assert status == 0 and all(row.ok for row in found.values())
    assert found["renderer"].found.startswith("chat, by the tokenizer's template")
    assert "limit 1e-05 at float32" in found["sampler against trainer"].found
    assert not {"engine", "API key"} & found.keys()
    assert not (tmp_path / "run").exists()

    status, out = doctor(capsys, "--config", str(tmp_path / "run.yaml"), f"model_name={tmp_path / 'none'}")
    assert status == 3 and "FAIL  model and data" in out and "is not a folder" in out
    status, out = doctor(capsys, "--config", str(tmp_path / "run.yaml"), "local.device=gpu")
    assert status == 3 and "FAIL  device" in out and "-> set local.device=auto or cpu" in out


def test_the_monitors_key_is_asked_for_where_it_is_needed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    small = ["dataset_builder.num_train=8", "dataset_builder.num_heldout=2", f"cache_dir={tmp_path}", "--json"]
    asked = ["--config", "monitor", "dataset_builder.reward.train_with_monitor=true"]
    status, out = doctor(capsys, *asked, *small)
    assert status == 3 and not rows(out)["API key"].ok and "export OPENAI_API_KEY" in rows(out)["API key"].cure
    _, out = doctor(capsys, "--config", "monitor", *small)
    assert "API key" not in rows(out)


def test_rooms_say_what_is_wrong_with_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = asyncio.run(engine_check(StockfishConfig(path=str(tmp_path / "none"))))
    assert not missing.ok and "is not an executable file" in missing.found and "apt-get" in missing.cure
    dying = tmp_path / "engine"
    dying.write_text("#!/bin/sh\nexit 7\n")
    dying.chmod(0o755)
    assert "exit code: 7" in asyncio.run(engine_check(StockfishConfig(path=str(dying)))).found

    assert disk_check("runs", tmp_path / "new" / "run").ok
    full = disk_check("runs", tmp_path, least=10**18)
    assert not full.ok and "free at" in full.found
    (tmp_path / "file").write_text("x")
    assert "Not a directory" in disk_check("runs", tmp_path / "file" / "run").found

    assert key_check(JudgeConfig(api_key_env="")).ok
    monkeypatch.setenv("OPENAI_API_KEY", "two words\n\x1b")
    assert not key_check(JudgeConfig()).ok

    versions, device = device_checks(LocalBackend(device="cpu"))
    assert versions.ok and f"torch {torch.__version__}" in versions.found and device.ok


def test_a_table_is_inert_and_says_how_many_rows_failed() -> None:
    text = table([Check("a", True, "x\x1b[2J\ny"), Check("long name", False, "no", "do it")])
    assert "\x1b" not in text
    assert text.splitlines() == [
        "ok    a          x\u241b[2J\u240ay",
        "FAIL  long name  no",
        "                 -> do it",
        "",
        "1 of 2 need attention.",
    ]
    assert table([Check("a", True, "x")]).endswith("All is well.")
