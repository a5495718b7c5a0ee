"""Settings for the machine: safe where they cannot apply, and never a change of what is computed."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM, GraniteConfig

from assay.backends.base import AdamParams, LossSpec
from assay.backends.config import LocalBackend
from assay.backends.local import attention, forward, hardware
from assay.backends.local.backend import TorchBackend
from assay.backends.local.decoder import Decoder
from assay.backends.local.optimizer import adamw
from assay.grpo.config import GRPOConfig
from assay.types import Datum, SamplingParams
from support.tiny_models import CONFIGS, FUSED, VOCAB, prompts, rollout_datum

MakeBackend = Callable[..., TorchBackend]
SPEC = LossSpec("importance_sampling")


def rollouts(backend: TorchBackend) -> list[Datum]:
    """Groups of 4, 1 and 3 completions with made-up advantages."""
    asked = [(p, s) for p, n in zip(prompts(3), (4, 1, 3), strict=True) for s in range(n)]
    done = asyncio.run(backend.sample([p for p, _ in asked], SamplingParams(9, stop=(1, 2, 3)), [s for _, s in asked]))
    return [rollout_datum(p, c, (i - 3.5) / 8) for i, ((p, _), c) in enumerate(zip(asked, done, strict=True))]


def gradient(backend: TorchBackend, data: list[Datum]) -> torch.Tensor:
    asyncio.run(backend.forward_backward(data, SPEC))
    return torch.cat([p.grad.flatten() for p in backend._trained.values() if p.grad is not None])


def same(a: torch.Tensor, b: torch.Tensor, tolerance: float = 2e-5) -> bool:
    return bool((a - b).norm() <= tolerance * a.norm())


def saved_bytes(backend: TorchBackend, data: list[Datum]) -> int:
    """Bytes of activations that autograd holds after a forward pass."""
    weights = {p.untyped_storage().data_ptr() for p in backend._model.parameters()}
    held: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in weights:
            held[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        for packed in backend._policy.micro_batches(data):
            forward.states(backend._policy.source, packed, backend.device)
    return sum(tensor.untyped_storage().nbytes() for tensor in held.values())


@pytest.mark.parametrize("name", CONFIGS)
def test_checkpointing_keeps_the_gradient_and_less_memory(make_backend: MakeBackend, name: str) -> None:
    plain, again = make_backend(name), make_backend(name, use_gradient_checkpointing=True)
    data = rollouts(plain)
    assert same(gradient(plain, data), gradient(again, data))
    assert saved_bytes(again, data) < 0.4 * saved_bytes(plain, data)
    drawn = rollouts(again)
    assert all(np.allclose(a.logprobs, b.logprobs, atol=1e-5) for a, b in zip(data, drawn, strict=True))


@pytest.mark.parametrize("name", FUSED)
def test_streamed_attention_gives_the_same_gradient(
    make_backend: MakeBackend, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = make_backend(name)
    data = rollouts(backend)
    want = gradient(backend, data)
    backend._optimizer.zero_grad()
    monkeypatch.setattr(attention, "SCORE_BUDGET", 0)
    monkeypatch.setattr(attention, "shared", None)
    assert same(want, gradient(backend, data))


class Outputs(TorchDispatchMode):
    """Shapes of everything that is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[torch.Size] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        self.shapes += [t.shape for t in (out if isinstance(out, tuple) else (out,)) if isinstance(t, torch.Tensor)]
        return out


def test_streamed_attention_keeps_no_scores() -> None:
    q, k, v = (torch.randn(2, 3, 50, 4, 8, requires_grad=True) for _ in range(3))
    sizes: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.numel()) or t, lambda t: t):
        out = attention.streamed(q, torch.randn(2, 4, 8, 30), torch.randn(2, 4, 30, 8), k, v, (30, 20), 0.3)
    out.sum().backward()
    assert max(sizes) < 3 * 4 * 50 * 70, "heads x queries x keys of one prompt"


def granite() -> torch.nn.Module:
    """A model whose logits are scaled behind the head."""
    config = GraniteConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        logits_scaling=3.0,
        initializer_range=0.3,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(config).eval()


@pytest.mark.parametrize("name", [*CONFIGS, "granite"])
def test_only_wanted_positions_reach_the_head(make_backend: MakeBackend, name: str) -> None:
    backend = TorchBackend(granite(), make_backend().tokenizer, LocalBackend()) if name == "granite" else None
    backend = backend or make_backend(name)
    rng = np.random.default_rng(0)
    data = []
    for _ in range(20):
        ids = rng.integers(1, VOCAB, 30)
        mask = (np.arange(1, 30) >= 27).astype(np.float32)
        data.append(Datum(ids[:-1], ids[1:], -mask, mask, mask))
    with Outputs() as seen:
        backend._forward_backward(data, SPEC)
        asyncio.run(backend.sample([tuple(d.tokens) for d in data], SamplingParams(3), range(20)))
    rows = max(shape.numel() // VOCAB for shape in seen.shapes if shape[-1:] == (VOCAB,))
    assert rows <= 20 * 3, "only trained positions, and the last ones of prompts"


def test_logits_that_are_more_than_a_head_are_the_modules(make_backend: MakeBackend) -> None:
    model = granite()
    backend = TorchBackend(model, make_backend().tokenizer, LocalBackend())  # type: ignore[arg-type]
    for datum in rollouts(backend):
        logits = model(input_ids=torch.from_numpy(datum.tokens)[None]).logits[0]
        want = torch.log_softmax(logits, -1).gather(-1, torch.from_numpy(datum.targets)[:, None])[:, 0]
        np.testing.assert_allclose(datum.logprobs, want.detach().numpy() * datum.mask, atol=1e-5)
        np.testing.assert_allclose(asyncio.run(backend.logprobs([datum]))[0], datum.logprobs, atol=1e-5)


@pytest.mark.parametrize("name", FUSED)
def test_half_precision_attention_is_close(make_backend: MakeBackend, name: str) -> None:
    full, half = make_backend(name), make_backend(name)
    source = half._policy.source
    assert isinstance(source, Decoder)
    half._policy = replace(half._policy, source=replace(source, attention_dtype=torch.bfloat16))
    data = rollouts(full)
    for a, b in zip(data, rollouts(half), strict=True):
        n = min(len(a), len(b))
        if (a.targets[:n] == b.targets[:n]).all():
            np.testing.assert_allclose(a.logprobs[:n], b.logprobs[:n], atol=0.1)
    assert torch.nn.functional.cosine_similarity(gradient(full, data), gradient(half, data), dim=0) > 0.99


def test_the_head_may_be_half_precision(make_backend: MakeBackend) -> None:
    full, half = make_backend("llama", dtype="bfloat16"), make_backend("llama", dtype="bfloat16", head_dtype="bfloat16")
    data = rollouts(full)
    a, b = (asyncio.run(x.logprobs(data)) for x in (full, half))
    assert any((x != y).any() for x, y in zip(a, b, strict=True))
    for x, y in zip(a, b, strict=True):
        np.testing.assert_allclose(x, y, atol=0.1)


def test_all_variants_of_adamw_take_the_same_steps() -> None:
    ends: dict[str, list[torch.Tensor]] = {}
    for kind in ("auto", "fused", "foreach", "loop"):
        generator = torch.Generator().manual_seed(0)
        weights = [torch.randn(shape, generator=generator, requires_grad=True) for shape in ((5, 7), (7,))]
        optimizer = adamw(weights, kind)
        for _ in range(5):
            for weight in weights:
                weight.grad = torch.randn(weight.shape, generator=generator)
            for group in optimizer.param_groups:
                group.update(lr=0.01, weight_decay=0.1)
            optimizer.step()
        ends[kind] = weights
    for kind in ("auto", "foreach", "loop"):
        torch.testing.assert_close(ends["fused"], ends[kind])


def test_a_checkpoint_does_not_decide_the_variant_of_adamw(make_backend: MakeBackend, tmp_path: Path) -> None:
    first, second = make_backend(adamw="fused"), make_backend(adamw="loop")
    data = rollouts(first)
    gradient(first, data)
    asyncio.run(first.optim_step(AdamParams(1e-3)))
    asyncio.run(first.save_state(tmp_path / "state"))
    asyncio.run(second.load_state(tmp_path / "state"))
    assert [(g["fused"], g["foreach"]) for g in second._optimizer.param_groups] == [(False, False)] * 2
    gradient(second, data)
    asyncio.run(second.optim_step(AdamParams(1e-3)))


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """A process that believes it has CUDA; returns what it was told."""
    told: dict[str, object] = {}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: bool(told.get("initialized")))
    monkeypatch.setattr(torch, "set_float32_matmul_precision", lambda value: told.update(precision=value))
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    for name in hardware.ALLOCATOR_VARIABLES:
        os.environ.pop(name, None)
    return told


def allocator() -> list[str | None]:
    return [os.environ.get(name) for name in hardware.ALLOCATOR_VARIABLES]


def test_cuda_is_set_up_before_it_starts(cuda: dict[str, object]) -> None:
    hardware.prepare_process(LocalBackend())
    assert cuda == {"precision": "high"} and torch.backends.cudnn.benchmark
    assert allocator() == ["max_split_size_mb:128"] * 2


def test_what_the_user_set_stays(cuda: dict[str, object]) -> None:
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    hardware.prepare_process(LocalBackend(matmul_precision="highest", cudnn_benchmark=False))
    assert cuda == {"precision": "highest"} and not torch.backends.cudnn.benchmark
    assert allocator() == [None, "expandable_segments:True"]


def test_an_allocator_setting_that_comes_too_late_is_said(
    cuda: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    cuda["initialized"] = True
    hardware.prepare_process(LocalBackend(cuda_allocator=""))
    assert not caplog.records
    hardware.prepare_process(LocalBackend())
    assert allocator() == [None, None] and "too late" in caplog.text


def test_the_allocator_under_a_model_of_the_callers_own_is_left_alone(
    cuda: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    for initialized in (True, False):
        cuda["initialized"] = initialized
        hardware.prepare_process(GRPOConfig().local_backend("cuda:0", half=False))
        assert allocator() == [None, None] and not caplog.records


def test_a_cpu_is_left_alone(cuda: dict[str, object], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "assay.backends.local.hardware")
    hardware.prepare_process(LocalBackend(device="cpu"))
    assert cuda == {} and allocator() == [None, None] and not torch.backends.cudnn.benchmark
    assert "do nothing" in caplog.text


def test_both_halves_of_all_layers_are_compiled_and_tried(
    make_backend: MakeBackend, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # Real compilation takes minutes on a CPU; every backend that asks for it compares the outcome when it is made.
    calls: list[str] = []

    def traced(function: Callable[..., Any], *, dynamic: bool) -> Callable[..., Any]:
        assert dynamic, "lengths differ from batch to batch"
        return lambda *args: calls.append(function.__name__) or function(*args)

    monkeypatch.setattr(torch, "compile", traced)
    plain, fast = make_backend("qwen2"), make_backend("qwen2", compile=True)
    assert "does nothing" not in caplog.text
    assert calls.count("enter") == calls.count("leave") == 4, "two layers, over prompts and over continuations"
    data = rollouts(plain)
    assert same(gradient(plain, data), gradient(fast, data))
    assert len(calls) > 8


@pytest.mark.parametrize("fault", ["fails", "differs"])
def test_compiling_that_goes_wrong_is_said(
    make_backend: MakeBackend, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    def broken(function: Callable[..., Any], **_: object) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            if fault == "fails":
                raise RuntimeError("no compiler\nand more")
            out = function(*args)
            return 2 * out if isinstance(out, torch.Tensor) else out

        return run

    monkeypatch.setattr(torch, "compile", broken)
    backend = make_backend("llama", compile=True)
    assert "local.compile=True does nothing" in caplog.text
    assert ("no compiler" in caplog.text) == (fault == "fails")
    data = rollouts(backend)
    assert same(gradient(make_backend("llama"), data), gradient(backend, data))


def test_what_cannot_be_compiled_or_computed_again_is_said(
    make_backend: MakeBackend, caplog: pytest.LogCaptureFixture
) -> None:
    make_backend("gpt_neox", compile=True)
    assert "local.compile=True does nothing" in caplog.text
