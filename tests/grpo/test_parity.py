"""The parity gate against samplers that lie, each in a way that real ones have failed; and against honest ones."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

import chz
import numpy as np
import peft
import pytest
import torch
from transformers import AutoModelForCausalLM, MixtralConfig

from assay import GRPOConfig, GRPOTrainer
from assay.backends.config import LocalBackend
from assay.backends.local.backend import TorchBackend
from assay.backends.parity import LIMITS, choose, compare, in_words, sampled_datum
from assay.errors import TrainingError
from assay.grpo.parity import Gate, Of, ParityConfig
from assay.rollouts.renderers.base import PlainRenderer
from assay.training.evaluate import evaluate
from assay.types import Completion, SamplingParams, TrajectoryGroup
from support.lying_samplers import Liar, below_adapters, half, late, liar, off_by_one, short_prompts, stale
from support.scripted import ScriptedGroup, play, scored, task, tiny_backend
from support.tiny_models import SPECIAL, tiny_model

TASKS = ["abc", "c 12", "3", "ab abba cab", "12 321 ab 123 c"]
SPEC = GRPOConfig(loss_fn="importance_sampling", learning_rate=1e-5, kl_coef=0.0)
Make = Callable[[], TorchBackend]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def adapted() -> TorchBackend:
    """A policy with adapters that do something already."""
    plain = tiny_backend()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = peft.get_peft_model(
            plain._model, peft.LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False)
        )
    return TorchBackend(model, plain.tokenizer, plain._local, None)


LIES: dict[str, Make] = {
    "temperature": lambda: liar(tiny_backend(), temperature=0.9),
    "no first token": lambda: liar(tiny_backend(), drop_first=True),
    "off by one": lambda: liar(tiny_backend(), lie=off_by_one),
    "adapters not handed over": lambda: below_adapters(adapted()),
    "bfloat16": lambda: half(tiny_backend()),
    "padding of shorter prompts": lambda: liar(tiny_backend(), lie=short_prompts(0.2, 15)),
    "late in completions": lambda: liar(tiny_backend(), lie=late(0.2, 14)),
    "not a number": lambda: liar(tiny_backend(), lie=lambda _, p, c: [float("nan"), *c.logprobs[1:]]),
    "impossible": lambda: liar(tiny_backend(), lie=lambda _, p, c: [float("-inf"), *c.logprobs[1:]]),
}


def rollouts(backend: TorchBackend, seed: int = 0) -> list[TrajectoryGroup]:
    def judge(text: str, sample: int, turn: int) -> Any:
        return scored(float(sample % 2))

    return play(backend, [ScriptedGroup(task(t), judge) for t in TASKS], max_tokens=16, seed=seed)


def weights(backend: TorchBackend) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in backend._trained.values()])


PATHS: dict[str, dict[str, Any]] = {
    "one step": {},
    "substeps": {"num_substeps": 5},
    "corrected": {"tis_cap": 2.0},
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", LIES)
def test_a_lying_sampler_is_stopped_before_its_first_step(name: str, path: str) -> None:
    backend = LIES[name]()
    assert isinstance(backend, Liar)
    trainer, before = GRPOTrainer.over(backend, chz.replace(SPEC, **PATHS[path])), weights(backend)
    with pytest.raises(
        TrainingError,
        match=r"not sampled by the policy that.*by the sampler and .* trainer.*raise grpo\.parity\.kl_limit",
    ):
        asyncio.run(trainer.update(rollouts(backend)))
    assert torch.equal(weights(backend), before) and backend.policy_version == backend.steps_tried == 0
    assert all(p.grad is None for p in backend._model.parameters()), "no gradient is left behind"


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("reuse", [False, True])
def test_the_step_after_a_refusal_is_that_of_a_trainer_that_refused_nothing(reuse: bool, path: str) -> None:
    config = chz.replace(SPEC, learning_rate=0.01, **PATHS[path])
    refusing, other = (GRPOTrainer.over(tiny_backend(), config) for _ in range(2))
    backend: Any = refusing.backend
    with pytest.raises(TrainingError, match="not sampled by the policy"):
        asyncio.run(refusing.update(rollouts(liar(tiny_backend(), temperature=0.9), seed=1), reuse=reuse))
    honest = rollouts(backend)
    found, want = (asyncio.run(trainer.update(honest, reuse=reuse)) for trainer in (refusing, other))
    assert want.metrics["optimizer_steps"] >= 1 and found.metrics["grad_norm"] == want.metrics["grad_norm"]
    assert torch.equal(weights(backend), weights(other.backend))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", LIES)
def test_an_evaluation_of_a_lying_sampler_gives_no_score(name: str) -> None:
    backend = LIES[name]()
    builders, params = [ScriptedGroup(task(t)) for t in TASKS], SamplingParams(16)
    work = evaluate(
        backend,
        PlainRenderer(backend.tokenizer),
        builders,
        params,
        samples=4,
        max_turns=1,
        seed=0,
        parity=ParityConfig(),
    )
    with pytest.raises(TrainingError, match=r"answers of the evaluation were not sampled.*No score was recorded"):
        asyncio.run(work)


@pytest.mark.parametrize("path", PATHS)
def test_weights_one_step_old_are_found_at_a_learning_rate_of_1e_5(path: str) -> None:
    backend = stale(tiny_backend())
    trainer = GRPOTrainer.over(backend, chz.replace(SPEC, **PATHS[path]))
    asyncio.run(trainer.update(rollouts(backend)))
    before = weights(backend)
    with pytest.raises(TrainingError, match="not sampled by the policy"):
        asyncio.run(trainer.update(rollouts(backend, seed=1)))
    assert torch.equal(weights(backend), before)


def test_what_is_sampled_ahead_is_checked_before_the_policy_changes() -> None:
    backend = liar(tiny_backend())
    honest = rollouts(backend)
    backend.temperature = 0.9
    turns = [t for g in rollouts(backend, seed=1) for r in g.trajectories for t in r.transitions]
    ahead = [sampled_datum(t.prompt_tokens, t.completion) for t in turns]
    with pytest.raises(TrainingError, match="sampled ahead"):
        asyncio.run(GRPOTrainer.over(backend, SPEC).update(honest, ahead=ahead))
    assert backend.steps_tried == 0


def mixture() -> TorchBackend:
    """A mixture of experts in which bfloat16 flips routers."""
    shape = MixtralConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        num_local_experts=8, num_experts_per_tok=2, sliding_window=None, initializer_range=0.2, **SPECIAL,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(shape).eval()
    return TorchBackend(model, tiny_backend().tokenizer, LocalBackend(device="cpu", dtype="bfloat16"), None)


HONEST: dict[str, Make] = {
    "float32": tiny_backend,
    "bfloat16": lambda: tiny_backend(dtype="bfloat16"),
    "adapters": adapted,
    "fallback": lambda: TorchBackend(
        copy.deepcopy(tiny_model("gpt_neox")), tiny_backend().tokenizer, LocalBackend(device="cpu"), None
    ),
    "mixture of experts in bfloat16": mixture,
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", HONEST)
def test_an_honest_sampler_passes_and_the_gate_changes_nothing(name: str, path: str) -> None:
    found = []
    for parity in (ParityConfig(), ParityConfig(enabled=False)):
        backend = HONEST[name]()
        trainer = GRPOTrainer.over(backend, chz.replace(SPEC, **PATHS[path], parity=parity))
        reports = [asyncio.run(trainer.update(rollouts(backend, seed))) for seed in range(2)]
        assert bool(reports[1].parity) == parity.enabled
        found.append((weights(backend), [r.metrics for r in reports]))
    assert torch.equal(found[0][0], found[1][0]) and found[0][1] == found[1][1]


def test_rollouts_of_older_weights_are_not_compared_with_the_present_ones() -> None:
    backend = tiny_backend()
    old = rollouts(backend)
    trainer = GRPOTrainer.over(backend, chz.replace(SPEC, learning_rate=0.05))
    asyncio.run(trainer.update(rollouts(backend, seed=1)))
    report = asyncio.run(trainer.update(old))
    assert report.metrics["kl_behaviour"] > 1e-3 and report.parity == {}


def test_both_numbers_of_the_worst_token_are_in_the_message() -> None:
    prompt, said = (5, 6, 7), Completion((8, 9, 10), (-1.0, -2.0, -0.5), "stop", 0)
    datum = sampled_datum(prompt, said)
    found = compare([datum], [np.array([0, 0, -1.0, -3.5, -0.5], np.float32)])
    assert found is not None and found.worst.token == 9 and found.worst.before == 4
    text = in_words(found, LIMITS["float32"], None)
    assert "log-probability -2 by the sampler and -3.5 by the trainer" in text and "token 2 of 3" in text


@pytest.mark.parametrize("count", [2, 30, 1000])
def test_one_token_does_not_decide_and_two_in_a_hundred_do(count: int) -> None:
    datum = sampled_datum((1,), Completion((2,) * count, (-1.0,) * count, "stop", 0))
    trainer = datum.logprobs.copy()
    trainer[0] += 0.9
    alone = compare([datum], [trainer])
    assert alone is not None and alone.agrees(LIMITS["float32"])
    assert not alone.agrees(replace(LIMITS["float32"], token=1.0)), "unless it has a limit of its own"
    trainer[: max(2, count // 50)] += 0.01
    more = compare([datum], [trainer])
    assert more is not None and not more.agrees(LIMITS["float32"])


def test_a_probe_has_the_extremes_and_is_a_function_of_content_and_seed() -> None:
    rng = np.random.default_rng(0)
    data = []
    for _ in range(60):
        prompt, said = rng.integers(1, 9, rng.integers(2, 20)), rng.integers(1, 9, rng.integers(1, 30))
        data.append(sampled_datum(prompt.tolist(), Completion(tuple(said.tolist()), (-1.0,) * len(said), "stop", 0)))
    chosen = choose(data, 100, 3)
    assert chosen == choose(data, 100, 3) != choose(data, 100, 4)
    assert min(d.prompt_length for d in data) in [data[i].prompt_length for i in chosen]
    assert max(map(len, data)) in [len(data[i]) for i in chosen]
    assert 100 <= sum(data[i].mask.sum() for i in chosen) < 130 + 60
    assert choose(data, 10**6, 0) == list(range(60)) and choose([], 10, 0) == []


def test_a_gate_without_tokens_says_nothing() -> None:
    gate = Gate(tiny_backend(), ParityConfig(), 1.0)
    asyncio.run(gate.probe([], "Nothing"))
    assert gate.metrics() == {}


@pytest.mark.parametrize("of", get_args(Of))
def test_a_refusal_names_the_keys_that_can_be_set_and_what_was_not_done(of: Of) -> None:
    backend = tiny_backend()
    tokens = (5, 6, 7)
    wrong = sampled_datum((3, 4), Completion(tokens, (-9.0, -9.0, -9.0), "stop", 0))
    with pytest.raises(TrainingError) as error:
        asyncio.run(Gate(backend, ParityConfig(), 1.0, of=of).probe([wrong], "The tokens"))
    said = str(error.value)
    assert ("grpo.parity.kl_limit" in said) == ("grpo.parity.tail_limit" in said) == (of != "step data")
    assert ("policy_version" in said) == (of == "step data")
    assert ("tis_cap" in said) == ("Nothing was trained" in said) == (of != "evaluation")
    assert ("No score was recorded" in said) == (of == "evaluation") and ("grpo.tis_cap" in said) == (of == "run")
