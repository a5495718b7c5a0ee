"""Training: the gradient is a property of the data, not of padding, order or micro-batches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from assay.backends.base import AdamParams, LossSpec
from assay.backends.local import forward
from assay.backends.local.backend import TorchBackend
from assay.backends.local.losses import SURROGATES
from assay.backends.local.module import Module
from assay.errors import TrainingError
from assay.types import Datum, SamplingParams
from support.losses import named_loss
from support.tiny_models import VOCAB, prompts, rollout_datum, tiny_model

MakeBackend = Callable[..., TorchBackend]


def rollouts(backend: TorchBackend, temperature: float = 1.0) -> list[Datum]:
    """Groups of 4, 1 and 3 sampled completions with made-up advantages."""
    asked = [(p, s) for p, n in zip(prompts(3), (4, 1, 3), strict=True) for s in range(n)]
    params = SamplingParams(9, temperature=temperature, stop=tuple(range(9)))
    done = asyncio.run(backend.sample([p for p, _ in asked], params, [s for _, s in asked]))
    return [rollout_datum(p, c, (i - 3.5) / 8) for i, ((p, _), c) in enumerate(zip(asked, done, strict=True))]


def gradient(backend: TorchBackend, data: list[Datum], loss: LossSpec) -> torch.Tensor:
    """The gradient of the summed loss, leaving none behind."""
    asyncio.run(backend.forward_backward(data, loss))
    grads = {n: p.grad for n, p in backend._trained.items()}
    backend._optimizer.zero_grad()
    return torch.cat(
        [torch.zeros_like(backend._trained[n]).flatten() if g is None else g.flatten() for n, g in grads.items()]
    )


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool((a - b).norm() <= 2e-5 * (a.norm() + 1e-9))


@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen3", "gpt_neox"])
@pytest.mark.parametrize("loss", SURROGATES)
def test_gradient_does_not_depend_on_micro_batches_or_order(make_backend: MakeBackend, name: str, loss: str) -> None:
    data = rollouts(make_backend(name), 0.9)
    # Moved behaviour log-probabilities make the clipped losses clip somewhere.
    data = [replace(d, logprobs=d.logprobs + 0.3 * d.mask * (-1) ** i) for i, d in enumerate(data)]
    spec = named_loss(loss, 0.9)
    whole = gradient(make_backend(name, micro_batch_tokens=10_000), data, spec)
    assert whole.norm() > 1e-3
    for budget in (1, 25, 60):
        assert same(whole, gradient(make_backend(name, micro_batch_tokens=budget), data, spec))
    order = np.random.default_rng(1).permutation(len(data))
    assert same(whole, gradient(make_backend(name), [data[i] for i in order], spec))


def test_shared_prompts_give_the_gradient_of_separate_sequences(make_backend: MakeBackend) -> None:
    shared, separate = make_backend("llama"), make_backend("llama")
    separate._policy = replace(separate._policy, source=Module.of(separate._model))
    data = rollouts(shared)
    spec = LossSpec("importance_sampling")
    assert same(gradient(shared, data, spec), gradient(separate, data, spec))


def test_groups_with_long_prompts_train_beside_groups_with_long_completions(make_backend: MakeBackend) -> None:
    # Padding may reach past the last position that the model knows, as long as nothing reads it.
    rng = np.random.default_rng(0)
    data = []
    for start, length in ((60, 64), (60, 63), (3, 40), (3, 30)):
        ids = rng.integers(1, VOCAB, length)
        ids[:start] = start
        mask = (np.arange(1, length) >= start).astype(np.float32)
        data.append(Datum(ids[:-1], ids[1:], -mask, mask, mask))
    spec = LossSpec("importance_sampling")
    together = gradient(make_backend(micro_batch_tokens=10_000), data, spec)
    assert same(together, gradient(make_backend(micro_batch_tokens=1), data, spec))


def test_gradient_matches_a_slow_float64_reference(make_backend: MakeBackend) -> None:
    data = rollouts(make_backend(), 0.8)
    data = [replace(d, logprobs=d.logprobs + 0.25 * d.mask * (-1) ** i) for i, d in enumerate(data)]
    model = tiny_model("gpt2").double()
    total = torch.zeros((), dtype=torch.float64)
    for d in data:
        logits = model(input_ids=torch.from_numpy(d.tokens)[None]).logits[0] / 0.8
        logprobs = torch.log_softmax(logits, -1).gather(-1, torch.from_numpy(d.targets)[:, None])[:, 0]
        ratio = torch.exp(logprobs - torch.from_numpy(d.logprobs).double())
        advantage = torch.from_numpy(d.advantages).double()
        clipped = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        total = total - (clipped * torch.from_numpy(d.mask)).sum()
    total.backward()
    want = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).float()
    assert same(want, gradient(make_backend(), data, named_loss("ppo", 0.8)))


@pytest.mark.parametrize("name", ["gpt2", "qwen2", "gpt_neox"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_ratio_is_one_before_the_first_update(make_backend: MakeBackend, name: str, temperature: float) -> None:
    backend = make_backend(name)
    data = rollouts(backend, temperature)
    output = asyncio.run(backend.forward_backward(data, LossSpec("importance_sampling", temperature)))
    for datum, now in zip(data, output.logprobs, strict=True):
        np.testing.assert_allclose(now, datum.logprobs, atol=1e-5)
        np.testing.assert_allclose(np.exp(now - datum.logprobs), 1.0, atol=1e-5)


def test_tokens_outside_the_mask_never_train(make_backend: MakeBackend) -> None:
    backend = make_backend()
    data = rollouts(backend)
    tail = np.array([5, 6, 7])
    longer = [
        Datum(
            np.concatenate([d.tokens, tail]),
            np.concatenate([d.targets, tail]),
            *(np.concatenate([s, np.zeros(3, np.float32)]) for s in (d.logprobs, d.advantages, d.mask)),
        )
        for d in data
    ]
    spec = LossSpec("importance_sampling")
    assert same(gradient(backend, data, spec), gradient(backend, longer, spec))


def test_zero_advantages_give_exactly_zero_gradient(make_backend: MakeBackend) -> None:
    backend = make_backend()
    data = [replace(d, advantages=np.zeros_like(d.advantages)) for d in rollouts(backend)]
    for loss in SURROGATES:
        assert not gradient(backend, data, named_loss(loss)).any()


def test_large_vocabularies_are_processed_in_chunks(make_backend: MakeBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = make_backend("llama")
    data = rollouts(backend)
    spec = named_loss("ppo")
    whole = gradient(backend, data, spec)
    monkeypatch.setattr(forward, "LOGIT_CHUNK", 3 * VOCAB)
    assert same(whole, gradient(backend, data, spec))


def test_entropy_is_exact(make_backend: MakeBackend) -> None:
    backend, model = make_backend(), tiny_model("gpt2")
    data = rollouts(backend)
    got = asyncio.run(backend.forward_backward(data, LossSpec("importance_sampling"))).metrics["entropy:mean"]
    entropies = []
    with torch.no_grad():
        for d in data:
            logits = model(input_ids=torch.from_numpy(d.tokens)[None]).logits[0][torch.from_numpy(d.mask) > 0]
            entropies += torch.distributions.Categorical(logits=logits).entropy().tolist()
    assert got == pytest.approx(np.mean(entropies), abs=1e-5)


def test_a_non_finite_gradient_changes_nothing(make_backend: MakeBackend) -> None:
    backend = make_backend()
    data = rollouts(backend)
    before = {n: p.clone() for n, p in backend._trained.items()}
    broken = [replace(data[0], advantages=np.full_like(data[0].advantages, np.nan)), *data[1:]]
    asyncio.run(backend.forward_backward(broken, LossSpec("importance_sampling")))
    with pytest.raises(TrainingError, match="gradient norm is nan"):
        asyncio.run(backend.optim_step(AdamParams(1e-3)))
    assert all(torch.equal(before[n], p) for n, p in backend._trained.items())
    assert backend.policy_version == 0
    asyncio.run(backend.forward_backward(data, LossSpec("importance_sampling")))
    assert np.isfinite(asyncio.run(backend.optim_step(AdamParams(1e-3)))["grad_norm"])


def test_clipping_bounds_the_step_and_decay_spares_vectors(make_backend: MakeBackend) -> None:
    backend = make_backend()
    vectors = {n: p.clone() for n, p in backend._trained.items() if p.dim() < 2}
    matrix = backend._trained["transformer.wte.weight"].clone()
    data = [replace(d, advantages=np.zeros_like(d.advantages)) for d in rollouts(backend)]
    asyncio.run(backend.forward_backward(data, named_loss("ppo")))
    asyncio.run(backend.optim_step(AdamParams(0.1, weight_decay=0.5)))
    assert all(torch.equal(backend._trained[n], v) for n, v in vectors.items())
    torch.testing.assert_close(backend._trained["transformer.wte.weight"].data, matrix * 0.95)


def test_bfloat16_trains_and_samples_close_to_float32(make_backend: MakeBackend) -> None:
    half, full = make_backend("llama", dtype="bfloat16"), make_backend("llama")
    data = rollouts(half)
    output = asyncio.run(half.forward_backward(data, LossSpec("importance_sampling")))
    for datum, now in zip(data, output.logprobs, strict=True):
        np.testing.assert_allclose(now, datum.logprobs, atol=0.1)
    a = gradient(half, data, LossSpec("importance_sampling"))
    b = gradient(full, data, LossSpec("importance_sampling"))
    assert torch.nn.functional.cosine_similarity(a, b, dim=0) > 0.99
    assert all(p.dtype == torch.float32 for p in half._trained.values())
