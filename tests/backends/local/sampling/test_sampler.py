"""A sample depends on its prompt and its seed alone; its log-probabilities are those of the distribution sampled."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from assay.backends.base import AdamParams
from assay.backends.local.backend import TorchBackend
from assay.backends.local.module import Module
from assay.backends.local.sampling.draw_token import draw, truncate, uniform
from assay.backends.local.sampling.sampler import LOOK_EVERY, Decode, Layout, Record
from assay.errors import ModelError, TrainingError
from assay.types import Completion, SamplingParams
from support.tiny_models import CONTEXT, VOCAB, prompts, tiny_model

MakeBackend = Callable[..., TorchBackend]
STOP = tuple(range(12))


def draw_all(
    backend: TorchBackend, asked: list[tuple[tuple[int, ...], int]], params: SamplingParams
) -> list[Completion]:
    return asyncio.run(backend.sample([p for p, _ in asked], params, [s for _, s in asked]))


def close(a: Completion, b: Completion) -> bool:
    return a.tokens == b.tokens and a.stop_reason == b.stop_reason and np.allclose(a.logprobs, b.logprobs, atol=1e-5)


@pytest.mark.parametrize("name", ["gpt2", "qwen3", "gpt_neox"])
def test_a_sample_does_not_depend_on_its_batch_mates(make_backend: MakeBackend, name: str) -> None:
    backend = make_backend(name)
    params = SamplingParams(20, temperature=0.8, stop=STOP)
    asked = [(p, 7 * i + s) for i, p in enumerate(prompts(4)) for s in range(5 - i)]
    together = draw_all(backend, asked, params)
    assert len({c.tokens for c in together}) > 5, "samples of one prompt must differ"
    backwards = draw_all(backend, asked[::-1], params)[::-1]
    alone = [draw_all(backend, [a], params)[0] for a in asked]
    assert all(close(a, b) and close(a, c) for a, b, c in zip(together, backwards, alone, strict=True))


def test_a_completion_is_yielded_before_others_of_its_batch_have_ended(make_backend: MakeBackend) -> None:
    backend, read = make_backend(), threading.Event()
    decode = backend._decoding.ready

    @contextlib.contextmanager
    def halting() -> Iterator[Decode]:
        with decode() as inner:

            def slow(layout: Layout, params: SamplingParams) -> Iterator[Record]:
                for step, record in enumerate(inner(layout, params)):
                    assert step < 2 or read.wait(10), "what the first records hold must have been read by now"
                    yield record

            yield slow

    backend._decoding.ready = halting  # type: ignore[method-assign]
    asked = [(p, s) for p in prompts(3) for s in range(6)]
    params = SamplingParams(40, stop=tuple(range(6)))

    async def run() -> dict[int, Completion]:
        found = {}
        async for place, completion in backend.sample_stream([p for p, _ in asked], params, [s for _, s in asked]):
            found[place] = completion
            read.set()
        return found

    found = asyncio.run(run())
    whole = draw_all(make_backend(), asked, params)
    assert [found[place] for place in range(len(asked))] == whole, "the same to the bit"
    lengths = [len(c.tokens) for c in found.values()]
    assert min(lengths) <= LOOK_EVERY and max(lengths) > 2 * LOOK_EVERY and list(found) != sorted(found)


def test_streams_side_by_side_are_the_streams_alone(make_backend: MakeBackend) -> None:
    backend, params = make_backend(sample_batch_tokens=60), SamplingParams(15, stop=STOP)
    parts = [[(p, 10 * i + s) for s in range(4)] for i, p in enumerate(prompts(3))]
    alone = [draw_all(backend, part, params) for part in parts]

    async def run() -> list[list[Completion]]:
        streams = (backend.sample([p for p, _ in part], params, [s for _, s in part]) for part in parts)
        return await asyncio.gather(*streams)

    assert asyncio.run(run()) == alone


def test_weights_cannot_change_under_an_open_stream(make_backend: MakeBackend, tmp_path: Path) -> None:
    backend, params = make_backend(sample_batch_tokens=20), SamplingParams(10)

    async def run() -> None:
        await backend.save_state(tmp_path / "state")
        async with contextlib.aclosing(backend.sample_stream([(1, 2)] * 4, params, range(4))) as stream:
            await anext(stream)
            for change in (backend.optim_step(AdamParams(0.0)), backend.load_state(tmp_path / "state")):
                with pytest.raises(TrainingError, match=r"_st\w+ was called while 1 streams of samples are open"):
                    await change
        assert (await backend.optim_step(AdamParams(0.0)))["grad_norm"] == 0
        assert backend.policy_version == 1

    asyncio.run(run())


def test_a_stream_that_is_cancelled_leaves_a_backend_that_samples_the_same(make_backend: MakeBackend) -> None:
    backend, params = make_backend(sample_batch_tokens=60), SamplingParams(15, stop=STOP)
    asked = [(p, s) for p in prompts(3) for s in range(6)]
    want = draw_all(backend, asked, params)

    async def cancelled(read: int) -> None:
        async def some() -> None:
            async with contextlib.aclosing(
                backend.sample_stream([p for p, _ in asked], params, [s for _, s in asked])
            ) as stream:
                for _ in range(read):
                    await anext(stream)
                began.set()
                await asyncio.sleep(10)

        began = asyncio.Event()
        reader = asyncio.create_task(some())
        await began.wait()
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        assert backend._streams == 0

    for read in (0, 1, 7):
        asyncio.run(cancelled(read))
        assert draw_all(backend, asked, params) == want


def test_small_batches_and_compaction_change_nothing(make_backend: MakeBackend) -> None:
    asked = [(p, s) for p in prompts(3) for s in range(6)]
    params = SamplingParams(25, stop=STOP)
    whole = draw_all(make_backend(), asked, params)
    lengths = {len(c.tokens) for c in whole}
    assert len(lengths) > 4, "rows must finish at different times for compaction to be tested"
    assert all(
        close(a, b) for a, b in zip(whole, draw_all(make_backend(sample_batch_tokens=40), asked, params), strict=True)
    )
    unstopped = draw_all(make_backend(), asked, SamplingParams(25))
    assert all(a.tokens == b.tokens[: len(a.tokens)] for a, b in zip(whole, unstopped, strict=True))


def test_fused_and_module_sampling_agree(make_backend: MakeBackend) -> None:
    fused, plain = make_backend("llama"), make_backend("llama")
    plain._policy = replace(plain._policy, source=Module.of(plain._model))
    asked = [(p, s) for p in prompts(3) for s in range(4)]
    params = SamplingParams(15, stop=STOP)
    pairs = zip(draw_all(fused, asked, params), draw_all(plain, asked, params), strict=True)
    assert all(close(a, b) for a, b in pairs)


@torch.no_grad()
def test_logprobs_are_the_models_under_temperature(make_backend: MakeBackend) -> None:
    model = tiny_model("gpt2")
    for prompt in prompts(3):
        completion = draw_all(make_backend(), [(prompt, 5)], SamplingParams(8, temperature=0.6))[0]
        logits = model(input_ids=torch.tensor([[*prompt, *completion.tokens]])).logits[0, len(prompt) - 1 : -1]
        want = torch.log_softmax(logits / 0.6, -1).gather(-1, torch.tensor(completion.tokens)[:, None])[:, 0]
        np.testing.assert_allclose(completion.logprobs, want, atol=1e-5)


def test_sampling_ends_at_stop_length_or_context(make_backend: MakeBackend) -> None:
    backend, asked = make_backend(), [(p, s) for p in prompts(3) for s in range(8)]
    for completion in draw_all(backend, asked, SamplingParams(10, stop=STOP)):
        stopped = completion.tokens[-1] in STOP
        assert completion.stop_reason == ("stop" if stopped else "length")
        assert not set(completion.tokens[:-1]) & set(STOP), "nothing is sampled after a stop token"
        assert stopped or len(completion.tokens) == 10
    long = tuple(range(1, CONTEXT - 2))
    short = draw_all(backend, [(long, 0), ((1, 2), 0)], SamplingParams(10))
    assert [len(c.tokens) for c in short] == [CONTEXT - len(long), 10]


@pytest.mark.parametrize("name", ["gpt2", "gpt_bigcode"])
def test_a_sample_that_filled_the_context_does_not_disturb_those_that_go_on(
    make_backend: MakeBackend, name: str
) -> None:
    backend, long = make_backend(name), tuple(range(1, CONTEXT - 2))
    short = [((i, 2), i) for i in range(1, 7)]
    done = draw_all(backend, [(long, 0), *short], SamplingParams(10))
    assert [len(c.tokens) for c in done] == [CONTEXT - len(long)] + [10] * 6
    assert all(close(a, b) for a, b in zip(done[1:], draw_all(backend, short, SamplingParams(10)), strict=True))


@pytest.mark.parametrize("prompt", [(), tuple([1] * CONTEXT)])
def test_prompts_without_room_are_refused(make_backend: MakeBackend, prompt: tuple[int, ...]) -> None:
    with pytest.raises(ModelError, match=f"prompt has {len(prompt)} tokens.*{CONTEXT}"):
        draw_all(make_backend(), [(prompt, 0)], SamplingParams(4))


def test_draws_follow_the_distribution() -> None:
    logits = torch.log(torch.tensor([0.5, 0.25, 0.15, 0.07, 0.03])).expand(40_000, -1)
    seeds = np.arange(40_000, dtype=np.uint64)
    tokens, logprobs = draw(logits, torch.from_numpy(uniform(seeds, 3)), SamplingParams(1))
    shares = torch.bincount(tokens, minlength=5) / len(tokens)
    np.testing.assert_allclose(shares, [0.5, 0.25, 0.15, 0.07, 0.03], atol=0.01)
    torch.testing.assert_close(logprobs, logits[0][tokens])


def test_truncated_distributions_are_renormalised() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.25, 0.15, 0.07, 0.03]]))
    assert torch.isinf(truncate(logits, 2, 1.0))[0].tolist() == [False, False, True, True, True]
    assert torch.isinf(truncate(logits, -1, 0.8))[0].tolist() == [False, False, False, True, True]
    _, logprob = draw(logits, torch.tensor([0.0], dtype=torch.float64), SamplingParams(1, top_k=2))
    assert logprob.item() == pytest.approx(np.log(0.5 / 0.75), abs=1e-6)


def test_impossible_tokens_are_never_drawn() -> None:
    logits = torch.full((64, VOCAB), -torch.inf)
    logits[:, 5] = 0.0
    edges = torch.linspace(0, 1 - 2**-53, 64, dtype=torch.float64)
    tokens, _ = draw(logits, edges, SamplingParams(1))
    assert set(tokens.tolist()) == {5}


def test_uniforms_are_uniform_and_unrelated() -> None:
    seeds = np.arange(20_000, dtype=np.uint64)
    columns = np.stack([uniform(seeds, t) for t in range(4)])
    assert columns.min() >= 0 and columns.max() < 1
    assert np.abs(columns.mean(1) - 0.5).max() < 0.01
    assert np.abs(np.corrcoef(columns) - np.eye(4)).max() < 0.03
    assert np.abs(np.corrcoef(columns[0, :-1], columns[0, 1:])[0, 1]) < 0.03
