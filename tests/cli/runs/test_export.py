"""`assay export`: what the folder does in plain transformers, what the card says, what is refused, and the hub."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from assay.backends.config import ScratchModel
from assay.backends.local.models import train_tokenizer
from assay.cli import main as cli
from assay.cli.options import config_of
from assay.envs.base import build_data
from assay.errors import ModelError
from assay.training.report.charts import MINUS
from assay.training.run.checkpoints import checkpoint_folder
from assay.training.run.reader import find_checkpoint
from assay.training.session import make_backend
from assay.types import Datum, SamplingParams
from support import plain_transformers
from support.hub_server import Hub, hub
from support.tiny_models import tiny_model
from support.tiny_run import metric, run, snapshot, tiny
from support.toy_env import CORPUS
from support.warm_process import run_warm

TOKEN = "hf_" + "s3cret" * 5
PROMPTS = ["123", "c b a", "a", "b2"]
MAX_TOKENS = 12
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


def pretrained(folder: Path, architecture: str, dtype: torch.dtype) -> Path:
    """A tiny model in a folder, as if it came from somewhere else."""
    model = tiny_model(architecture).to(dtype)
    tokenizer = train_tokenizer(CORPUS, 40)
    tokenizer.chat_template = TEMPLATE
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs of a scratch model and of adapters. Do not change them."""
    root = tmp_path_factory.mktemp("runs")
    run(tiny(root / "scratch", eval_every=2))
    for name, architecture, dtype in (("lora", "qwen2", torch.float32), ("half", "gpt2", torch.bfloat16)):
        base = pretrained(root / f"{name}-base", architecture, dtype)
        changes: dict[str, Any] = {"model_name": str(base), "lora_rank": 4, "scratch": ScratchModel()}
        run(tiny(root / name, **changes, save_every=6, learning_rate=0.03))
    return {name: root / name for name in ("scratch", "lora", "half")}


def export(*arguments: str | Path) -> int:
    return cli.main(["export", *map(str, arguments)])


def sampled_greedily(path: Path) -> list[tuple[list[int], list[float]]]:
    """What Assay's sampler answers to the prompts, and the trainer's log-probabilities of that."""

    async def sample() -> list[tuple[list[int], list[float]]]:
        config = config_of(path, [])
        data = build_data(config.active_builder, config.build_context())
        policy = checkpoint_folder(path, find_checkpoint(path)) / "policy"
        backend: Any = await make_backend(config, data, policy)
        stop = (backend.tokenizer.eos_token_id,)
        prompts = [backend.tokenizer.encode(text, add_special_tokens=False) for text in PROMPTS]
        params = SamplingParams(MAX_TOKENS, 1.0, top_k=1, stop=stop)
        greedy = await backend.sample(prompts, params, list(range(len(prompts))))
        everything = [await scores(backend, p, c.tokens) for p, c in zip(prompts, greedy, strict=True)]
        return [(list(c.tokens), found) for c, found in zip(greedy, everything, strict=True)]

    async def scores(backend: Any, prompt: list[int], tokens: tuple[int, ...]) -> list[float]:
        ids = np.array([*prompt, *tokens])
        zeros = np.zeros(len(ids) - 1, np.float32)
        mask = zeros.copy()
        mask[len(prompt) - 1 :] = 1
        (found,) = await backend.logprobs([Datum(ids[:-1], ids[1:], zeros, zeros, mask)])
        return [float(x) for x in found[len(prompt) - 1 :]]

    return asyncio.run(sample())


def test_the_exported_folder_answers_as_the_policy_does(runs: dict[str, Path], tmp_path: Path) -> None:
    for name, path in runs.items():
        assert export(path, "--merge", tmp_path / name) == 0
    request = {str(tmp_path / name): {"prompts": PROMPTS, "max_tokens": MAX_TOKENS} for name in runs}
    done = run_warm([plain_transformers.__file__], tmp_path, os.environ, json.dumps(request))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for name, path in runs.items():
        said = found[str(tmp_path / name)]
        assert not said["assay"]
        assert said["template"] == (None if name == "scratch" else TEMPLATE)
        assert said["dtype"] == ("torch.bfloat16" if name == "half" else "torch.float32")
        if name == "half":
            continue  # rounding to half precision may change a token
        for answer, (tokens, logprobs) in zip(said["answers"], sampled_greedily(path), strict=True):
            assert answer["tokens"] == tokens
            assert answer["logprobs"] == pytest.approx(logprobs, abs=1e-4)
        seen = {tuple(round(logprob, 3) for logprob in answer["logprobs"]) for answer in said["answers"]}
        assert len(seen) == len(PROMPTS), "the answers are too alike to prove anything"


def test_merged_adapters_differ_from_their_base_and_can_be_kept_in_full_precision(
    runs: dict[str, Path], tmp_path: Path
) -> None:
    assert export(runs["half"], "--merge", "--dtype", "float32", tmp_path / "out") == 0
    merged = load_file(tmp_path / "out" / "model.safetensors")
    base = load_file(runs["half"].with_name("half-base") / "model.safetensors")
    assert {t.dtype for t in merged.values()} == {torch.float32}
    changed = [name for name in base if not torch.equal(base[name].float(), merged[name])]
    assert changed and all("attn" in name or "mlp" in name for name in changed)


def test_adapters_alone_load_over_their_base(runs: dict[str, Path], tmp_path: Path) -> None:
    from peft import PeftModel

    assert export(runs["lora"], tmp_path / "out") == 0
    assert not (tmp_path / "out" / "model.safetensors").exists()
    base = tiny_model("qwen2")
    tokens = torch.tensor([[1, 2, 3]])
    before = base(tokens).logits
    after = PeftModel.from_pretrained(base, str(tmp_path / "out"))(tokens).logits
    assert (before - after).abs().max() > 0.01
    assert "library_name: peft" in (tmp_path / "out" / "README.md").read_text()


def test_the_card_has_the_figures_and_no_path(runs: dict[str, Path], tmp_path: Path) -> None:
    for name, path in runs.items():
        out = tmp_path / name
        assert export(path, "--merge", out) == 0
        card = (out / "README.md").read_text()
        first, *_, last = metric(path, "eval/reward/mean")
        (row,) = re.findall(r"\| reward \| ([\d.]+) ± [\d.]+ \| ([\d.]+) ± [\d.]+ \| (.[\d.]+) ± [\d.]+ \|", card)
        assert row[:2] == (f"{first:.3f}", f"{last:.3f}")
        assert float(row[2].replace(MINUS, "-")) == pytest.approx(last - first, abs=0.0011)
        assert "| `learning_rate` |" in card and "| transformers |" in card and "| commit |" in card
        for file in out.rglob("*"):
            text = file.read_bytes()
            assert str(tmp_path.parent).encode() not in text and os.fsencode(Path.home()) not in text, file


def test_a_checkpoint_can_be_chosen(runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = runs["scratch"]
    values = dict(zip((0, 2, 4, 6), metric(path, "eval/reward/mean"), strict=True))
    best = max(values, key=lambda batch: (values[batch], batch))
    for arguments, wanted in (
        (["--batch", "4"], "rl_000004"),
        (["--best"], f"rl_{best:06d}" if best else "sft_000006"),
    ):
        capsys.readouterr()
        assert export(path, *arguments, tmp_path / wanted) == 0
        assert f"Exported the model of {wanted} to" in capsys.readouterr().out
        saved = path / "checkpoints" / wanted / "policy" / "model" / "model.safetensors"
        exported = load_file(tmp_path / wanted / "model.safetensors")
        assert all(torch.equal(exported[name], tensor) for name, tensor in load_file(saved).items())


def test_a_run_is_only_read_and_an_earlier_export_is_replaced(runs: dict[str, Path], tmp_path: Path) -> None:
    before = snapshot(runs["scratch"])
    out = tmp_path / "out"
    assert export(runs["scratch"], "--batch", "2", out) == 0
    (first,) = out.glob("*.safetensors")
    old = first.read_bytes()
    assert export(runs["scratch"], out) == 0
    assert first.read_bytes() != old and not (tmp_path / "out.partial").exists()
    assert snapshot(runs["scratch"]) == before


def refused(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    capsys.readouterr()
    assert export(*arguments) in (1, 2)
    error = capsys.readouterr().err
    assert "Traceback" not in error
    return error.split("error: ")[1]


def test_what_cannot_be_exported_is_refused(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    out, scratch = tmp_path / "out", runs["scratch"]
    assert "is not a run: it has no config.json" in refused(capsys, tmp_path, out)
    assert "no checkpoint of RL batch 3; it has 0, 2, 4, 6." in refused(capsys, scratch, "--batch", "3", out)
    assert "not measured at any checkpoint" in refused(capsys, scratch, "--best", out, "best_metric=nothing")
    assert "needs a token with write access" in refused(capsys, scratch, out, "--push", "me/model")
    assert "A repository is named user/model" in refused(capsys, scratch, out, "--push", "me/my model")
    assert "adapters keep their trained precision. Add --merge." in refused(
        capsys, runs["lora"], out, "--dtype", "float16"
    )
    assert not out.exists()
    for place in (".", ".."):
        assert f"{place} is not the name of a folder" in refused(capsys, scratch, place)
    out.mkdir()
    (out / "thesis.tex").write_text("precious")
    assert "holds files that no export wrote (thesis.tex)" in refused(capsys, scratch, out)
    assert "is a file, and an exported model needs a folder" in refused(capsys, scratch, out / "thesis.tex")
    assert (out / "thesis.tex").read_text() == "precious"
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert "only this machine has" in refused(capsys, runs["lora"], tmp_path / "new", "--push", "me/model")


def test_a_damaged_base_and_adapters_that_cannot_be_merged_are_named(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, base = tmp_path / "lora", tmp_path / "base"
    shutil.copytree(runs["lora"], path)
    message = refused(capsys, path, "--merge", tmp_path / "out", f"model_name={base}")
    assert f"model_name={base}" in message or f"The model {base} cannot be loaded" in message
    assert not (tmp_path / "out").exists() and not (tmp_path / "out.partial").exists()


def test_a_merge_that_would_be_another_policy_is_refused(runs: dict[str, Path], tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model

    from assay.backends.local.export import weights

    base = tiny_model("gpt2")  # its head and its embedding are one tensor
    base.save_pretrained(tmp_path / "base")
    settings = LoraConfig(r=2, target_modules=["lm_head"], task_type="CAUSAL_LM")
    wrapped = get_peft_model(base, settings)
    for name, parameter in wrapped.named_parameters():
        if "lora_B" in name:
            parameter.data.fill_(0.5)
    wrapped.save_pretrained(tmp_path / "adapter")
    tokenizer = weights.load_tokenizer(runs["scratch"] / "checkpoints/rl_000006/policy/model")
    with pytest.raises(ModelError, match="it is another policy, so nothing was written"):
        weights.write_model(
            tmp_path / "adapter", str(tmp_path / "base"), "float32", None, tokenizer, {}, tmp_path / "out"
        )
    assert not (tmp_path / "out").exists()


# The hub


@pytest.fixture
def loopback(monkeypatch: pytest.MonkeyPatch) -> Any:
    with hub(TOKEN) as state:
        monkeypatch.setenv("HF_ENDPOINT", state.url)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        # The newer way of large files is a binary of the hub's own; Git LFS is what every hub has.
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
        yield state


def test_a_model_is_pushed_whole_and_privately_and_again(
    runs: dict[str, Path], tmp_path: Path, loopback: Hub, capfd: pytest.CaptureFixture[str]
) -> None:
    for step in ("2", "6"):
        assert export(runs["scratch"], "--batch", step, tmp_path / "out", "--push", "me/model") == 0
        said = capfd.readouterr()
        assert "Pushed to" in said.out and "me/model" in said.out
        assert TOKEN not in said.out + said.err
        exported = {name: data for name, data in snapshot(tmp_path / "out").items() if name != "assay_export.json"}
        assert loopback.files == exported
    assert loopback.repositories["me/model"]["visibility"] == "private"
    assert loopback.commits == [f"Checkpoint rl_00000{step} of a run with Assay" for step in (2, 6)]
    assert "# me/model" in loopback.files["README.md"].decode()


def test_a_hub_that_refuses_or_cannot_be_reached_is_one_line_without_the_token(
    runs: dict[str, Path],
    tmp_path: Path,
    loopback: Hub,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    wrong = TOKEN.upper()
    for variable, value in (("HF_TOKEN", wrong), ("HF_ENDPOINT", "http://127.0.0.1:9")):
        monkeypatch.setenv(variable, value)
        assert export(runs["scratch"], tmp_path / "out", "--push", "me/model") == 1
        said = capfd.readouterr()
        assert "Pushing to me/model failed: " in said.err and "is complete: give the same command again" in said.err
        assert wrong not in said.out + said.err and "Traceback" not in said.err
    assert (tmp_path / "out" / "model.safetensors").exists() and not loopback.files


def test_a_public_repository_is_asked_for(runs: dict[str, Path], tmp_path: Path, loopback: Hub) -> None:
    assert export(runs["scratch"], tmp_path / "out", "--push", "me/open", "--public") == 0
    assert loopback.repositories["me/open"].get("visibility") == "public"


def test_weights_that_were_changed_on_disk_are_not_exported(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run"
    shutil.copytree(runs["scratch"], path)
    model = path / "checkpoints" / "rl_000006" / "policy" / "model" / "model.safetensors"
    data = model.read_bytes()
    model.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert "was changed after it was written" in refused(capsys, path, tmp_path / "out")
