"""Loading, saving, LoRA, the reference policy, and what happens when a model cannot be had."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from assay.backends.base import AdamParams, LossSpec
from assay.backends.config import LocalBackend, ScratchModel
from assay.backends.local.backend import TorchBackend
from assay.envs.base import TokenizerCorpus
from assay.errors import CheckpointError, ModelError, TrainingError
from assay.types import Datum, SamplingParams
from support.tiny_models import prompts, rollout_datum

MakeBackend = Callable[..., TorchBackend]


def batch(backend: TorchBackend) -> list[Datum]:
    vocabulary = backend._model.config.vocab_size
    short = [tuple(t % vocabulary for t in p) for p in prompts(2) for _ in range(3)]
    done = asyncio.run(backend.sample(short, SamplingParams(5), list(range(6))))
    return [rollout_datum(p, c, (i - 2.5) / 6) for i, (p, c) in enumerate(zip(short, done, strict=True))]


def step(backend: TorchBackend, data: list[Datum]) -> None:
    asyncio.run(backend.forward_backward(data, LossSpec("importance_sampling")))
    asyncio.run(backend.optim_step(AdamParams(1e-2, weight_decay=0.1)))


def weights(backend: TorchBackend) -> dict[str, torch.Tensor]:
    return {n: p.detach().clone() for n, p in backend._trained.items()}


def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)


def lora(folder: Path, **local: object) -> TorchBackend:
    return TorchBackend.create(str(folder), 2, LocalBackend(**local), ScratchModel(), None, 0)  # type: ignore[arg-type]


@pytest.fixture
def folder(scratch_backend: MakeBackend, tmp_path: Path) -> Path:
    asyncio.run(scratch_backend().save_state(tmp_path / "base"))
    return tmp_path / "base" / "model"


def test_restored_state_continues_bit_for_bit(scratch_backend: MakeBackend, tmp_path: Path) -> None:
    first = scratch_backend()
    data = batch(first)
    step(first, data)
    asyncio.run(first.freeze_reference())
    asyncio.run(first.save_state(tmp_path / "state"))
    step(first, data)
    second = scratch_backend(seed=9)
    asyncio.run(second.load_state(tmp_path / "state"))
    assert second.policy_version == 1
    step(second, data)
    assert equal(weights(first), weights(second))
    reference = asyncio.run(second.logprobs(data, reference=True))
    want = asyncio.run(first.logprobs(data, reference=True))
    assert all(np.array_equal(a, b) for a, b in zip(reference, want, strict=True))


def test_weights_only_leaves_the_optimizer_fresh(scratch_backend: MakeBackend, tmp_path: Path) -> None:
    first, fresh = scratch_backend(), scratch_backend(seed=5)
    step(first, batch(first))
    asyncio.run(first.save_state(tmp_path / "state"))
    asyncio.run(fresh.load_state(tmp_path / "state", weights_only=True))
    assert equal(weights(first), weights(fresh))
    assert fresh.policy_version == 0 and not fresh._optimizer.state


def test_a_saved_model_is_an_ordinary_hugging_face_folder(scratch_backend: MakeBackend, folder: Path) -> None:
    backend = scratch_backend()
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert all(torch.equal(p, backend._model.state_dict()[n]) for n, p in model.state_dict().items())
    text = "cab 321 ab"
    assert AutoTokenizer.from_pretrained(folder).encode(text) == backend.tokenizer.encode(text)
    assert backend.tokenizer.decode(backend.tokenizer.encode(text)) == text


def test_lora_trains_adapters_only_and_survives_a_checkpoint(folder: Path, tmp_path: Path) -> None:
    backend = lora(folder)
    data = batch(backend)
    frozen = {n: p.clone() for n, p in backend._model.named_parameters() if not p.requires_grad}
    before = asyncio.run(backend.logprobs(data))
    for datum, now in zip(data, before, strict=True):
        np.testing.assert_allclose(now, datum.logprobs, atol=1e-5)
    step(backend, data)
    assert all("lora_" in n for n in backend._trained)
    assert all(torch.equal(frozen[n], p) for n, p in backend._model.named_parameters() if n in frozen)
    after = asyncio.run(backend.logprobs(data))
    assert max(np.abs(a - b).max() for a, b in zip(before, after, strict=True)) > 1e-4
    asyncio.run(backend.save_state(tmp_path / "adapter"))
    again = lora(folder)
    asyncio.run(again.load_state(tmp_path / "adapter"))
    step(backend, data)
    step(again, data)
    assert equal(weights(backend), weights(again))


def test_lora_over_a_half_precision_base(folder: Path) -> None:
    backend = lora(folder, dtype="bfloat16")
    step(backend, batch(backend))
    kinds = {p.dtype for p in backend._model.parameters() if not p.requires_grad}
    assert kinds == {torch.bfloat16}
    assert {p.dtype for p in backend._trained.values()} == {torch.float32}


def test_the_reference_stays_where_it_was_frozen(scratch_backend: MakeBackend) -> None:
    backend = scratch_backend()
    data = batch(backend)
    with pytest.raises(TrainingError, match="freeze_reference"):
        asyncio.run(backend.logprobs(data, reference=True))
    asyncio.run(backend.freeze_reference())
    frozen = asyncio.run(backend.logprobs(data))
    step(backend, data)
    moved, policy = asyncio.run(backend.logprobs(data)), weights(backend)
    reference = asyncio.run(backend.logprobs(data, reference=True))
    assert all(np.array_equal(a, b) for a, b in zip(frozen, reference, strict=True))
    assert not all(np.allclose(a, b) for a, b in zip(moved, reference, strict=True))
    assert equal(policy, weights(backend)), "asking for the reference must not move the policy"


def test_the_seed_decides_the_initial_weights(scratch_backend: MakeBackend) -> None:
    assert equal(weights(scratch_backend(3)), weights(scratch_backend(3)))
    assert not equal(weights(scratch_backend(3)), weights(scratch_backend(4)))


def create(name: str, corpus: TokenizerCorpus | None = None, **local: object) -> TorchBackend:
    return TorchBackend.create(name, 0, LocalBackend(**local), ScratchModel(), corpus, 0)  # type: ignore[arg-type]


def test_models_that_cannot_be_had_are_refused(tmp_path: Path, folder: Path, corpus: TokenizerCorpus) -> None:
    with pytest.raises(ModelError, match="is not a folder"):
        create(str(tmp_path / "nowhere"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match="cannot be loaded"):
        create(str(tmp_path / "empty"))
    (folder / "model.safetensors").write_bytes(b"\x08\x00")
    with pytest.raises(ModelError, match="cannot be loaded"):
        create(str(folder))
    with pytest.raises(ModelError, match="closed grammar"):
        create("scratch")
    with pytest.raises(ModelError, match=r"local\.device=cuda:7"):
        create("scratch", corpus, device="cuda:7")
    stray = TokenizerCorpus(["ab!"], "[ab]+", "ab")
    with pytest.raises(ModelError, match="'!'"):
        create("scratch", stray)


def test_a_checkpoint_of_another_model_is_refused(
    scratch_backend: MakeBackend, corpus: TokenizerCorpus, tmp_path: Path
) -> None:
    asyncio.run(scratch_backend().save_state(tmp_path / "state"))
    other = TorchBackend.create("scratch", 0, LocalBackend(), ScratchModel(hidden_size=64), corpus, 0)
    with pytest.raises(CheckpointError, match="does not fit this model"):
        asyncio.run(other.load_state(tmp_path / "state"))
    (tmp_path / "state" / "optimizer.pt").unlink()
    with pytest.raises(CheckpointError, match=r"optimizer\.pt"):
        asyncio.run(scratch_backend().load_state(tmp_path / "state"))


def test_a_saved_model_must_be_the_one_that_the_settings_describe(folder: Path, corpus: TokenizerCorpus) -> None:
    shape = ScratchModel(hidden_size=32, num_layers=2, context_length=64)
    saved = create(str(folder))
    saved.check_scratch(shape)
    with pytest.raises(ModelError, match="n_layer is 2, not 3"):
        saved.check_scratch(ScratchModel(hidden_size=32, num_layers=3, context_length=64))
    with pytest.raises(ModelError, match="model_type is gpt2, not llama"):
        saved.check_scratch(ScratchModel(architecture="llama", hidden_size=32, num_layers=2, context_length=64))
