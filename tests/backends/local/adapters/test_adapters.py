"""Many adapters on one model: each computes what it would alone, and what goes wrong with one stays with it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from assay.backends.base import AdamParams, LossSpec
from assay.backends.config import LocalBackend
from assay.backends.local.adapters import engine as engines
from assay.backends.local.adapters import files, layers, scoring
from assay.backends.local.adapters.bank import PARTS, Adapter, AdapterBank, Shape
from assay.backends.local.adapters.engine import Call, Engine, Sampled
from assay.backends.local.adapters.layers import Weights
from assay.backends.local.adapters.training import WholeDatum, forward_backward, step
from assay.backends.local.backend import TorchBackend
from assay.backends.local.decoder import prefill
from assay.backends.local.models import add_lora
from assay.errors import CheckpointError, ModelError
from assay.types import SamplingParams
from support.tiny_models import CONTEXT, prompts, tiny_model

LOCAL = LocalBackend(device="cpu")
BLOCKS = frozenset(("attn", "mlp"))
ENDLESS = SamplingParams(12)


def bank_of(kind: str) -> AdapterBank:
    return AdapterBank(tiny_model(kind), LOCAL, torch.device("cpu"))


def stirred(bank: AdapterBank, seed: int, parts: frozenset = BLOCKS) -> Adapter:
    """An adapter that changes what the model says."""
    adapter = bank.create(Shape(4, parts, seed))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in adapter.trained.values():
            tensor += 0.2 * torch.randn(tensor.shape, generator=generator)
    return adapter


def alone(kind: str, adapter: Adapter) -> TorchBackend:
    """The local backend with a copy of an adapter."""
    model = add_lora(tiny_model(kind), 4, LOCAL, 0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.copy_(adapter.trained[name.replace("base_model.model.", "").replace(".default", "")])
    return TorchBackend(model, None, LOCAL)


def run(engine: Engine) -> None:
    while engine.busy:
        engine.advance(5)


def tokens(samples: list[Sampled]) -> list[list[int]]:
    return [s.tokens for s in samples]


@pytest.mark.parametrize("kind", ["gpt2", "llama", "gpt_neox"])
def test_an_adapter_begins_as_the_local_backends(kind: str) -> None:
    mine = bank_of(kind).create(Shape(4, BLOCKS, 7)).trained
    model = add_lora(tiny_model(kind), 4, LOCAL, 7)
    theirs = {n.removeprefix("base_model.model.").replace(".default", ""): p for n, p in model.named_parameters()}
    assert mine.keys() == {n for n in theirs if "lora_" in n}
    assert all(torch.equal(t, theirs[n]) for n, t in mine.items())


@pytest.mark.parametrize(("kind", "side_by_side"), [("gpt2", 1024), ("qwen3", 0)])
def test_samples_of_many_that_join_a_running_batch_are_those_of_each_alone(
    kind: str, side_by_side: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers, "SIDE_BY_SIDE", side_by_side)
    bank = bank_of(kind)
    adapters = [stirred(bank, i) for i in range(2)]
    engine, asked = Engine(bank, 400), prompts(7)
    cooler = SamplingParams(20, temperature=0.7, top_k=20, top_p=0.9, stop=(0, 5))
    got = []
    for i, prompt in enumerate(asked):
        got.append(engine.add(Call(prompt, (i, i + 100), (ENDLESS, cooler)[i % 3 == 0], adapters[i % 2].weights)))
        engine.advance(3)
    run(engine)
    backends = [alone(kind, a) for a in adapters]
    for i, prompt in enumerate(asked):
        params = (ENDLESS, cooler)[i % 3 == 0]
        want = asyncio.run(backends[i % 2].sample([prompt, prompt], params, [i, i + 100]))
        for one, other in zip(want, got[i], strict=True):
            assert (list(one.tokens), one.stop_reason) == (other.tokens, other.stop_reason)
            np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-5)
    assert engine.peak > 4, "nothing ran side by side"


def test_a_prompt_is_run_once_for_a_group_however_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    bank, prompt, seeds = bank_of("qwen3"), prompts(1)[0], (1, 2, 3)
    adapter = stirred(bank, 1)
    alone_each = []
    for seed in seeds:
        engine = Engine(bank, 65536)
        alone_each += engine.add(Call(prompt, (seed,), ENDLESS, adapter.weights))
        run(engine)
    ran: list[tuple[int, ...]] = []

    def counted(decoder: Any, tokens: torch.Tensor, *rest: Any) -> Any:
        ran.append(tuple(tokens.shape))
        return prefill(decoder, tokens, *rest)

    monkeypatch.setattr(engines, "prefill", counted)
    monkeypatch.setattr(engines, "PREFILL_TOKENS", len(prompt))
    for requests in ([seeds], [(seed,) for seed in seeds]):
        engine = Engine(bank, 65536)
        got = [s for one in requests for s in engine.add(Call(prompt, one, ENDLESS, adapter.weights))]
        run(engine)
        assert tokens(got) == tokens(alone_each)
        assert ran == [(1, len(prompt))]
        ran.clear()


def test_rows_that_live_on_stay_where_they_are() -> None:
    assert engines.filled([0, 2, 3, 6]) == [0, 6, 2, 3]
    assert engines.filled([4, 5]) == [4, 5] and engines.filled([]) == []


def test_a_base_model_row_is_not_touched_by_adapters_beside_it() -> None:
    bank = bank_of("qwen3")
    engine, prompt = Engine(bank, 65536), prompts(1)[0]
    before = engine.add(Call(prompt, (1,), ENDLESS, None))
    run(engine)
    after = engine.add(Call(prompt, (1,), ENDLESS, None))
    engine.add(Call(prompt, (1,), ENDLESS, stirred(bank, 3, frozenset(PARTS)).weights))
    run(engine)
    assert tokens(before) == tokens(after)
    np.testing.assert_allclose(before[0].logprobs, after[0].logprobs, atol=1e-5)


def test_weights_that_are_not_finite_fail_alone() -> None:
    bank = bank_of("qwen3")
    good = stirred(bank, 1)
    broken = Weights({n: (a.detach() * 1e38, b.detach() * 1e38) for n, (a, b) in good.weights.pairs.items()}, 4, 1.0)
    asked, engine = prompts(3), Engine(bank, 65536)
    want = [engine.add(Call(p, (1, 2), ENDLESS, good.weights)) for p in asked]
    run(engine)
    got = []
    for prompt in asked:
        bad = engine.add(Call(prompt, (1, 2), ENDLESS, broken))
        got.append(engine.add(Call(prompt, (1, 2), ENDLESS, good.weights)))
        engine.advance(2)
        assert all(s.failed for s in bad)
    run(engine)
    assert [tokens(s) for s in want] == [tokens(s) for s in got]
    with torch.no_grad():
        next(iter(good.trained.values())).fill_(torch.nan)
    with pytest.raises(ModelError, match="not finite"):
        good.snapshot()


def test_a_row_that_fails_leaves_nothing_to_the_one_that_takes_its_place() -> None:
    bank = bank_of("qwen3")
    adapter = stirred(bank, 1)
    short, long = prompts(1)[0][:3], tuple(range(1, 20))
    engine = Engine(bank, 65536)
    want = engine.add(Call(short, (7,), ENDLESS, None))
    run(engine)
    beside = engine.add(Call(long, (1,), SamplingParams(30), None))
    failing = engine.add(Call(long, (1,), SamplingParams(30), adapter.weights))
    engine.advance(2)
    assert engine._stacks is not None
    for name in (n for n in adapter.weights.pairs if "mlp" in n):  # whose products overflow
        stack = engine._stacks[name]
        assert stack is not None
        stack[1].mul_(1e37)
    engine.advance(3)
    assert failing[0].failed
    got = engine.add(Call(short, (7,), ENDLESS, None))
    run(engine)
    assert tokens(got) == tokens(want) and not beside[0].failed and len(beside[0].tokens) == 30


def test_samples_end_by_text_by_room_and_by_being_dropped() -> None:
    bank = bank_of("gpt2")
    engine, prompt = Engine(bank, 65536), tuple(range(1, CONTEXT - 3))
    text = engine.add(Call(prompt[:3], (1,), ENDLESS, None, ends_text=lambda so_far: len(so_far) == 4))
    room = engine.add(Call(prompt, (1,), ENDLESS, None))
    full = engine.add(Call((*prompt, 1, 2, 3, 4), (1,), ENDLESS, None))
    gone = engine.add(Call(prompt[:3], (1,), ENDLESS, None))
    engine.advance(2)
    engine.drop(gone)
    run(engine)
    assert (text[0].stop_reason, len(text[0].tokens)) == ("stop", 4)
    assert (room[0].stop_reason, len(room[0].tokens)) == ("length", 4)
    assert (full[0].stop_reason, len(full[0].tokens)) == ("length", 1)
    assert gone[0].stop_reason is None and len(gone[0].tokens) < 12


def test_greedy_samples_and_the_likeliest_tokens() -> None:
    bank = bank_of("gpt2")
    engine, prompt = Engine(bank, 65536), prompts(1)[0]
    greedy = engine.add(Call(prompt, (1,), SamplingParams(6, temperature=0.0), None, top=3))[0]
    run(engine)
    whole = [*prompt, *greedy.tokens]
    scores = scoring.score(bank, None, [(whole, scoring.Asked(top=3)), (whole, scoring.Asked(first=len(prompt)))])
    assert greedy.tokens == scores[0].top_ids[len(prompt) - 1 :, 0].tolist() == [ids[0] for ids in greedy.top_ids]
    np.testing.assert_allclose(greedy.logprobs, scores[0].own[len(prompt) - 1 :], atol=1e-5)
    np.testing.assert_allclose(scores[1].own, scores[0].own[len(prompt) - 1 :], atol=1e-5)
    np.testing.assert_allclose(np.stack(greedy.top_logprobs), scores[0].top_logprobs[len(prompt) - 1 :], atol=1e-5)


def test_what_is_asked_of_prompts() -> None:
    bank = bank_of("gpt2")
    prompt = prompts(1)[0]
    targets = np.full((len(prompt) - 1, 2), -1)
    targets[:, 0] = prompt[1:]
    asked = scoring.Asked(first=2, targets=targets, draws=400, seed=3)
    found, again = scoring.score(bank, None, [(prompt, asked), (prompt, asked)])
    np.testing.assert_array_equal(found.draws, again.draws)
    np.testing.assert_allclose(found.targets[1:, 0], found.own, atol=1e-6)
    assert (found.targets[:, 1] == 0).all()
    top = scoring.score(bank, None, [(prompt, scoring.Asked(top=1))])[0]
    share = (found.draws == top.top_ids).mean(axis=1)
    np.testing.assert_allclose(share, np.exp(top.top_logprobs[:, 0]), atol=0.1)


def datum(prompt: tuple[int, ...], new: int, seed: int) -> WholeDatum:
    rng = np.random.default_rng(seed)
    ids = np.array([*prompt, *rng.integers(1, 90, new)])
    zeros = np.zeros(len(prompt) - 1, np.float32)
    advantages = np.concatenate([zeros, rng.normal(size=new).astype(np.float32)])
    logprobs = np.concatenate([zeros, -rng.random(new).astype(np.float32)])
    return WholeDatum(ids[:-1], ids[1:], logprobs, advantages, np.ones_like(advantages), prompt=len(prompt) - 1)


def test_gradients_add_up_apart_and_a_saved_adapter_goes_on_exactly(tmp_path: Path) -> None:
    bank = bank_of("qwen3")
    prompt = prompts(1)[0]
    data, loss = [datum(prompt, 5 + i, i) for i in range(4)], LossSpec("importance_sampling")
    one, other = stirred(bank, 1), stirred(bank, 2)
    forward_backward(bank, one, data[:2], loss, backward=True)
    forward_backward(bank, other, data, loss, backward=True)
    forward_backward(bank, one, data[2:], loss, backward=True)
    forward_backward(bank, one, data, loss, backward=False)
    with pytest.raises(ModelError):  # where no gradient is asked for, an error costs none
        forward_backward(bank, one, [datum([10**6], 3, 0)], loss, backward=False)
    whole = stirred(bank, 1)
    forward_backward(bank, whole, data, loss, backward=True)
    assert step(one, AdamParams(1e-3, grad_clip_norm=0.0)) == pytest.approx(
        step(whole, AdamParams(1e-3, grad_clip_norm=0.0)), rel=1e-5
    )
    files.write(tmp_path, bank, one, "base", optimizer=True)
    restored = bank.create(Shape(4, BLOCKS, 99))
    files.read(tmp_path, restored, optimizer=True)
    for adapter in (one, restored):
        forward_backward(bank, adapter, data, loss, backward=True)
        step(adapter, AdamParams(1e-2))
    assert restored.steps == 2 and all(torch.equal(restored.trained[n], t) for n, t in one.trained.items())
    fresh = bank.create(Shape(4, BLOCKS, 99))
    files.read(tmp_path, fresh, optimizer=False)
    forward_backward(bank, fresh, data, loss, backward=True)
    step(fresh, AdamParams(1e-2))
    assert not all(torch.equal(fresh.trained[n], t) for n, t in one.trained.items())
    assert files.read_weights(tmp_path, bank, 4).pairs.keys() == one.weights.pairs.keys()
    with pytest.raises(CheckpointError, match="does not fit"):
        files.read(tmp_path, bank.create(Shape(2, BLOCKS, 1)), optimizer=False)
    (tmp_path / files.OPTIMIZER).write_bytes(b"\x80\x04not tensors")
    with pytest.raises(CheckpointError, match="does not fit"):
        files.read(tmp_path, fresh, optimizer=True)


def test_models_without_a_fused_decoder_are_refused() -> None:
    with pytest.raises(ModelError, match="Serve a GPT-2, Llama, Mistral, Qwen2 or Qwen3 model"):
        Engine(bank_of("gpt_neox"), 100)
