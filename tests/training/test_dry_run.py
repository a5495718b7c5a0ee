"""A dry run checks what a start checks, by the same words, writes nothing, and says what the run would take."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from assay.backends.base import Capabilities
from assay.backends.config import LocalBackend, PolicySpec, ScratchModel
from assay.backends.local import footprint as shapes
from assay.backends.local.backend import open_backend
from assay.backends.local.models import train_tokenizer
from assay.backends.probe import Speed, check_agreement, measure_speed
from assay.cli import main as cli
from assay.envs.base import build_data
from assay.envs.chess.dataset import ChessDatasetBuilder
from assay.errors import AssayError, ConfigError, ModelError
from assay.training.config import EvalConfig, SFTConfig, TrainingConfig
from assay.training.dry_run import dry_run
from assay.training.forecast import Work, evaluations, time_words, too_large
from assay.training.loop import train
from assay.training.session import check_data
from assay.types import Completion, SamplingParams
from support.chat_templates import chat_model
from support.scripted import CORPUS, tiny_backend
from support.tiny_run import kill, run, snapshot, tiny
from support.toy_env import ToyBuilder


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def plan(config: TrainingConfig) -> str:
    return asyncio.run(dry_run(config))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_model(tmp_path_factory.mktemp("model"), "gemma")


def test_the_plan_shows_the_renderer_the_first_prompt_memory_and_time(tmp_path: Path, model: Path) -> None:
    text = plan(tiny(tmp_path / "run", model_name=str(model), scratch=ScratchModel()))
    assert "Renderer: chat, by the tokenizer's template" in text and "no system role" in text
    prompt = text.partition("First prompt (")[2].partition("Memory:")[0]
    assert "  | <bos><start_of_turn>user\n" in prompt and prompt.endswith("  | <start_of_turn>model\n  | \n")
    assert re.search(r"Memory: about [\d.]+ [kM]B \(weights .* for [\d,]+ parameters; .* are free", text)
    assert re.search(
        r"Time: about .* \(SFT .*, 6 RL batches of .*, 3 evaluations of .*An estimate from 16 rollouts", text
    )
    assert list(tmp_path.iterdir()) == [], "nothing is written"


def test_a_limit_of_answers_beyond_the_context_is_said_and_estimates_use_what_can_be(tmp_path: Path) -> None:
    scratch = ScratchModel(hidden_size=32, num_layers=1, context_length=16, vocab_size=40)
    text = plan(tiny(tmp_path / "run", max_tokens=4000, scratch=scratch))
    said = re.search(r"Answers: at most (\d+) tokens after this prompt, not max_tokens=4000: .* is 16 tokens", text)
    estimate = re.search(r"for answers of ([\d,]+) tokens", text)
    assert said and estimate and int(said[1]) < 16 and float(estimate[1].replace(",", "")) < 16
    fits = plan(tiny(tmp_path / "run", max_tokens=4, scratch=scratch))
    assert "Answers: at most" not in fits
    most = plan(tiny(tmp_path / "run", max_tokens=16, scratch=scratch))
    assert text.partition("Memory:")[2].partition(";")[0] == most.partition("Memory:")[2].partition(";")[0]


def test_a_prompt_cannot_steer_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: Path) -> None:
    monkeypatch.setattr("support.toy_env.prompts", lambda rng, count: ["\x1b[2J" + "a" * 3000] * count)
    config = tiny(tmp_path / "run", model_name=str(model), scratch=ScratchModel(), sft=SFTConfig())
    with pytest.raises(AssayError, match="context"):  # a prompt of 3000 letters leaves no room here
        plan(config)
    monkeypatch.setattr("support.toy_env.prompts", lambda rng, count: ["\x1b[2J" + "a 1 " * 60] * count)
    text = plan(config)
    assert "\x1b" not in text and "\u241b[2J" in text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dataset_builder": ToyBuilder(supervised=False)}, "but this environment has no supervised examples"),
        ({"load_checkpoint_path": Path("/nowhere")}, "Checkpoint /nowhere does not exist"),
        ({"resume_from_batch": 77}, "resume_from_batch=77, but .* has no run to resume"),
        ({"dataset_builder": ToyBuilder(renderer_name="chat")}, "needs a tokenizer with a chat template"),
        ({"local": LocalBackend(device="gpu")}, "local.device=gpu cannot be used"),
        ({"log_path": Path("/proc/version/run")}, "Cannot write the run directory at /proc/version/run"),
        ({"model_name": "/nowhere/model", "scratch": ScratchModel()}, "model_name=/nowhere/model is not a folder"),
    ],
)
def test_what_a_start_refuses_a_dry_run_refuses_in_the_same_words(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    config = tiny(tmp_path / "run", **changes)
    said = []
    for attempt in (plan, train):
        with pytest.raises(AssayError, match=words) as refused:
            attempt(config)  # type: ignore[operator]
        said.append(str(refused.value))
    assert said[0] == said[1]


def test_an_engine_that_does_not_answer_is_found_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = tmp_path / "engine"
    engine.write_text("#!/bin/sh\nexit 7\n")
    engine.chmod(0o755)
    small = ["dataset_builder.num_train=16", "dataset_builder.num_heldout=2", f"cache_dir={tmp_path}"]
    path = f"dataset_builder.stockfish.path={engine}"
    status = cli.main(["train", "--config", "chess", "--dry-run", *small, path])
    assert status == 2 and "engine: " in (err := capsys.readouterr().err) and "exit code: 7" in err


def test_a_run_that_goes_on_or_is_complete_is_planned_as_that(tmp_path: Path) -> None:
    config = tiny(tmp_path / "run", max_batches=3, save_every=2)
    kill(config, "assay.grpo.trainer", "GRPOTrainer.update", 3)
    before = snapshot(tmp_path / "run")
    text = plan(config)
    assert re.search(r"Resumes after step 7 \(rl_000002\)\.", text) and "1 RL batches" in text and "SFT 0" not in text
    again = tiny(tmp_path / "run", max_batches=3, save_every=2, resume_from_batch=0)
    assert "2 later steps would be removed" in plan(again)
    assert snapshot(tmp_path / "run") == before
    run(config)
    assert plan(config) == f"The run in {tmp_path / 'run'} is complete; a start would do nothing."


def test_batches_with_a_checkpoint_are_listed_as_ranges() -> None:
    from assay.training.run.starting_point import as_ranges

    assert as_ranges([]) == "none"
    assert as_ranges([0, 2]) == "0, 2"
    assert as_ranges(range(0, 1001, 10)) == "0 to 1000 by 10"
    assert as_ranges([0, 1, 2, 3, 7, 10, 20, 30, 40, 45]) == "0 to 3, 7, 10 to 40 by 10, 45"


# What is estimated


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("rank", [0, 4])
def test_the_parameters_of_the_estimate_are_those_of_the_model(family: str, rank: int, tmp_path: Path) -> None:
    shape = ScratchModel(architecture=family, hidden_size=32, num_layers=2, context_length=64, vocab_size=40)  # type: ignore[arg-type]
    backend = tiny_backend()
    if rank:
        chat_model(tmp_path, "qwen3")
    name = str(tmp_path) if rank else "scratch"
    policy = PolicySpec(name, rank, 0, None, None, LocalBackend(device="cpu"), shape)
    data = ToyBuilder().build(TrainingConfig(model_name="scratch", lora_rank=0).build_context())
    backend = asyncio.run(open_backend(policy, data, None))
    found = shapes.footprint(policy, reference=True, positions=100)
    trained = sum(p.numel() for p in backend._trained.values())
    unused = (shape.vocab_size - len(backend.tokenizer)) * shape.hidden_size if not rank else 0
    assert found.trained - unused == trained
    assert found.parameters - unused == sum(p.numel() for p in backend._model.parameters())
    assert found.optimizer == 2 * found.gradients == 8 * found.trained and found.reference == 4 * found.trained
    assert found.total >= found.weights + found.gradients + found.optimizer


def test_memory_follows_the_settings_that_bound_it() -> None:
    def of(**local: Any) -> shapes.Footprint:
        policy = PolicySpec("scratch", 0, 0, None, None, LocalBackend(**local), ScratchModel())
        return shapes.footprint(policy, reference=False, positions=10**6)

    assert of(micro_batch_tokens=1000).activations < of(micro_batch_tokens=2000).activations
    assert of(sample_batch_tokens=1000).cache * 2 == of(sample_batch_tokens=2000).cache
    assert of(use_gradient_checkpointing=True).activations < of().activations
    assert too_large(of(), 10**12) == ""
    assert "Lower local.micro_batch_tokens" in too_large(of(), 10**6)


def test_time_is_that_of_the_parts() -> None:
    sft = SFTConfig(num_steps=10, batch_size=4)
    chess = ChessDatasetBuilder(num_heldout=10)
    config = TrainingConfig(model_name="scratch", lora_rank=0, max_tokens=50, sft=sft, dataset_builder=chess)
    work = Work(batches=20, prompt=100, supervised=50, heldout=10)
    speed = Speed(rollouts=64, tokens=8, whole=True, sampled_per_s=1000, trained_per_s=10_000)
    text = time_words(config, work, speed)
    # 256 rollouts: 2.048 s to sample, 2.7648 s to train; 40 held-out rollouts: 0.32 s; 2000 supervised tokens: 0.2 s
    assert "about 1 min 37 s (SFT 0 s, 20 RL batches of 4.8 s, 3 evaluations of 0.3 s)" in text
    assert "the most there may be" not in text
    longer = time_words(config, work, Speed(64, 8, False, 1000, 10_000))
    assert "for answers of 50 tokens (the most there may be)" in longer
    assert [evaluations(b, e) for b, e in ((0, 10), (20, 10), (25, 10), (5, 0))] == [1, 3, 4, 2]


def test_a_sampler_that_disagrees_with_the_trainer_is_found() -> None:
    backend = tiny_backend()
    prompts = [backend.tokenizer.encode(text, add_special_tokens=False) for text in ("abc", "12 cab 3", "a")]
    params = SamplingParams(8)
    good = asyncio.run(check_agreement(backend, prompts, params))
    assert good.ok and "(limit 1e-05 at float32)" in good.found

    class Off:
        capabilities: Capabilities = backend.capabilities

        def __getattr__(self, name: str) -> Any:
            return getattr(backend, name)

        async def sample(self, *args: Any) -> list[Completion]:
            found = await backend.sample(*args)
            return [Completion(c.tokens, tuple(x - 0.01 for x in c.logprobs), c.stop_reason, 0) for c in found]

    bad = asyncio.run(check_agreement(Off(), prompts, params))  # type: ignore[arg-type]
    assert not bad.ok and bad.cure and "by the sampler" in bad.found


def test_a_probe_measures_a_part_of_a_batch() -> None:
    from assay.backends.base import LossSpec

    backend = tiny_backend()
    prompts = [backend.tokenizer.encode(text, add_special_tokens=False) for text in ("abc", "12 3")]
    speed = asyncio.run(measure_speed(backend, prompts, 4, SamplingParams(8), LossSpec("cross_entropy")))
    assert speed.rollouts == 8 and 0 < speed.tokens <= 8 and speed.whole
    assert speed.sampled_per_s > 0 and speed.trained_per_s > 0
    cut = asyncio.run(measure_speed(backend, prompts * 20, 4, SamplingParams(50), LossSpec("cross_entropy")))
    assert cut.rollouts == 64 and not cut.whole


@pytest.mark.parametrize("changes", [{"eval_every": 5}, {"eval": EvalConfig(samples_per_task=3)}])
def test_settings_of_evaluation_without_held_out_tasks_are_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    config = tiny(tmp_path / "run", **{"eval_every": 10, "eval": EvalConfig(), **changes})
    data = build_data(config.active_builder, config.build_context())
    nothing = dataclasses.replace(data, heldout=dataclasses.replace(data.heldout, prompts=[]))
    check_data(config, data)
    with pytest.raises(ConfigError, match="would have no effect: this environment has no held-out tasks"):
        check_data(config, nothing)
    check_data(tiny(tmp_path / "run", eval_every=10, eval=EvalConfig()), nothing)


def test_a_vocabulary_below_the_alphabet_is_refused() -> None:
    assert len(train_tokenizer(CORPUS, 100)) <= 100
    with pytest.raises(ModelError, match=r"scratch\.vocab_size=3 would have no effect: the alphabet of the tasks has"):
        train_tokenizer(CORPUS, 3)
