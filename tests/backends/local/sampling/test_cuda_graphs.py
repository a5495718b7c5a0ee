"""Decoding in steps of fixed shape gives what decoding step by step gives; both hashes give the same bits."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from assay.backends.local.backend import TorchBackend
from assay.backends.local.decoder import Decoder
from assay.backends.local.sampling import cuda_graphs, draw_token
from assay.backends.local.sampling.cuda_graphs import StaticDecode
from assay.backends.local.sampling.half_copies import HalfCopies
from assay.types import Completion, SamplingParams
from support.tiny_models import CONTEXT, FUSED, VOCAB, prompts

MakeBackend = Callable[..., TorchBackend]
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let short samples cross every boundary."""
    monkeypatch.setattr(cuda_graphs, "FIRST_SPAN", 4)
    monkeypatch.setattr(cuda_graphs, "PROMPT_STEP", 8)
    monkeypatch.setattr(cuda_graphs, "LOOK_EVERY", 3)


def with_static(backend: TorchBackend) -> TorchBackend:
    policy = backend._policy
    assert isinstance(policy.source, Decoder)
    backend._decoding.static = StaticDecode(policy.source, policy.head, CPU, capture=False)
    return backend


def draw_all(
    backend: TorchBackend, asked: list[tuple[tuple[int, ...], int]], params: SamplingParams
) -> list[Completion]:
    return asyncio.run(backend.sample([p for p, _ in asked], params, [s for _, s in asked]))


def assert_same(a: list[Completion], b: list[Completion]) -> None:
    for x, y in zip(a, b, strict=True):
        assert (x.tokens, x.stop_reason) == (y.tokens, y.stop_reason)
        np.testing.assert_allclose(x.logprobs, y.logprobs, atol=1e-5)


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(25, stop=tuple(range(12))),
        SamplingParams(13, temperature=0.7, top_p=0.9),
        SamplingParams(1),
        SamplingParams(4, top_k=5, stop=(3,)),
    ],
    ids=["to a stop", "nucleus", "one token", "top k"],
)
def test_fixed_shapes_give_the_same_samples(make_backend: MakeBackend, name: str, params: SamplingParams) -> None:
    asked = [(p, 7 * i + s) for i, p in enumerate(prompts(5)) for s in range(6 - i)]
    steady = with_static(make_backend(name))
    want = draw_all(make_backend(name), asked, params)
    assert_same(want, draw_all(steady, asked, params))
    assert_same(want[:3], draw_all(steady, asked[:3], params))
    assert_same(want, draw_all(steady, asked, params))


def test_batches_shrink_and_grow_in_one_arena(make_backend: MakeBackend) -> None:
    params = SamplingParams(30, stop=tuple(range(12)))
    steady, plain = with_static(make_backend("llama")), make_backend("llama")
    assert steady._decoding.static is not None
    for count in (1, 3, 8, 2):
        asked = [(p, s) for p in prompts(count, seed=count) for s in range(8)]
        assert_same(draw_all(plain, asked, params), draw_all(steady, asked, params))
    groups = {shape.group for shape in steady._decoding.static._boards}
    assert len(groups) > 1 and 8 in groups, "rows end at different times, so batches have to shrink"


class Tape(TorchDispatchMode):
    """What CUDA does with a graph, on the CPU: operations are noted while a step runs, and run again on their memory.

    Like a capture, it refuses whatever needs an answer from the device, or memory of the host.
    """

    REFUSED = ("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "lift_fresh", "is_pinned", "equal")

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        assert func.overloadpacket.__name__ not in self.REFUSED, func
        out = func(*args, **(kwargs or {}))
        self.notes.append((func, args, kwargs or {}, out))
        return out

    def pool(self) -> None:
        return None

    def replay(self) -> None:
        for func, args, kwargs, out in self.notes:
            again = func(*args, **kwargs)
            for old, new in zip(self._tensors(out), self._tensors(again), strict=True):
                if old.data_ptr() != new.data_ptr():
                    old.copy_(new)

    @staticmethod
    def _tensors(out: Any) -> list[torch.Tensor]:
        return [t for t in (out if isinstance(out, tuple | list) else (out,)) if isinstance(t, torch.Tensor)]


@pytest.mark.parametrize("name", FUSED)
def test_a_replayed_step_is_a_step(make_backend: MakeBackend, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    steady = with_static(make_backend(name))
    decode = steady._decoding.static
    assert decode is not None

    @contextlib.contextmanager
    def capture(tape: Tape, pool: object, capture_error_mode: str) -> Iterator[None]:
        assert decode is not None and decode._arena is not None
        live = [t for b in decode._boards.values() for t in (b.tokens, b.alive, *b.keys, *b.values)]
        live += [decode._arena.length, decode._arena.tokens, decode._arena.logprobs]
        before = [t.clone() for t in live]
        with tape:
            yield
        for tensor, old in zip(live, before, strict=True):
            tensor.copy_(old)

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Tape)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    monkeypatch.setattr(cuda_graphs, "EAGER_STEPS", 1)
    decode._capture = True
    params = SamplingParams(25, temperature=0.9, stop=tuple(range(8)))
    asked = [(p, s) for p in prompts(4) for s in range(6)]
    want = draw_all(make_backend(name), asked, params)
    assert_same(want, draw_all(steady, asked, params))
    assert_same(want, draw_all(steady, asked, params))
    assert len(decode._graphs) >= 3 and decode._capture


def test_a_step_that_cannot_be_captured_is_said_and_goes_on(
    make_backend: MakeBackend, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    steady = with_static(make_backend())
    assert steady._decoding.static is not None
    steady._decoding.static._capture = True

    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Tape)
    monkeypatch.setattr(torch.cuda, "graph", refuse)
    asked = [(p, s) for p in prompts(2) for s in range(3)]
    assert_same(draw_all(make_backend(), asked, SamplingParams(9)), draw_all(steady, asked, SamplingParams(9)))
    assert "cannot be captured" in caplog.text and not steady._decoding.static._capture


def test_a_full_context_and_long_seeds(make_backend: MakeBackend) -> None:
    long = tuple(range(1, CONTEXT - 2))
    asked = [(long, 2**64 - 1), ((1, 2), 2**63), ((1, 2), 2**63 + 5), ((4, 2), 0)]
    params = SamplingParams(10)
    want = draw_all(make_backend("gpt2"), asked, params)
    assert_same(want, draw_all(with_static(make_backend("gpt2")), asked, params))


def test_both_hashes_give_the_same_bits() -> None:
    rng = np.random.default_rng(0)
    seeds = np.concatenate(
        [rng.integers(0, 2**64, 5000, dtype=np.uint64), np.array([0, 1, 2**63, 2**64 - 1], np.uint64)]
    )
    signed = torch.from_numpy(seeds.view(np.int64))
    for step in (0, 1, 2, 77, 4095):
        want = draw_token.uniform(seeds, step)
        assert np.array_equal(want, draw_token.device_uniform(signed, torch.tensor(step)).numpy())


def test_searching_by_blocks_finds_the_same_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = 3 * torch.randn(2000, VOCAB, generator=torch.Generator().manual_seed(0))
    logits[:, ::7] = -torch.inf
    logits[500:, 40:] = -torch.inf
    uniforms = torch.from_numpy(draw_token.uniform(np.arange(2000, dtype=np.uint64), 0))
    uniforms[:3] = torch.tensor([0.0, 1 - 2**-53, 0.5])
    want = draw_token.draw(logits, uniforms, SamplingParams(1))
    monkeypatch.setattr(draw_token, "BLOCK", 8)
    tokens, logprobs = draw_token.draw(logits, uniforms, SamplingParams(1))
    assert torch.equal(tokens, want[0]) and torch.equal(logprobs, want[1])
    assert torch.isfinite(logprobs).all()


@torch.no_grad()
@pytest.mark.parametrize("name", ["gpt2", "qwen2"])
def test_half_copies_compute_what_autocast_does(make_backend: MakeBackend, name: str) -> None:
    backend = make_backend(name)
    model = backend._model
    copies = HalfCopies(model, model.get_output_embeddings())
    for parameter in model.parameters():
        parameter.mul_(1.5)
    tokens = torch.randint(1, VOCAB, (2, 9))
    with torch.autocast("cpu", torch.bfloat16):
        want = model(input_ids=tokens).logits
    with copies.in_place(), torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        assert torch.equal(model(input_ids=tokens).logits, want)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight or name == "qwen2"
