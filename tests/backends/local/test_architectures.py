"""Every kind of architecture samples and trains with the numbers of transformers' own forward pass, or is refused."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.common.architectures import SPECIAL as SPECIAL_OF
from benchmarks.common.architectures import build, catalogue
from benchmarks.common.model_checks import measure
from torch import nn
from transformers import AutoModelForCausalLM, GPT2Config, MistralConfig

from assay.backends.config import LocalBackend
from assay.backends.local.architectures import fused, understood
from assay.backends.local.architectures.context import NO_LIMIT, context_length, warn_of_shortened_context
from assay.backends.local.architectures.fused import fused_decoder
from assay.backends.local.architectures.lively import lively
from assay.backends.local.architectures.own_forward import own_forward
from assay.backends.local.architectures.precision import in_float32
from assay.backends.local.backend import TorchBackend
from assay.backends.local.hardware import runner
from assay.backends.local.module import Module
from assay.backends.parity import sampled_datum
from assay.errors import ModelError
from assay.types import SamplingParams
from support.tiny_models import SPECIAL, tiny_model

CPU = torch.device("cpu")
MAKE = catalogue()
KINDS = {
    "mistral": "own forward pass, batched",  # a window in every layer
    "gemma2": "own forward pass, batched",  # windows in turn, soft caps
    "llama4_text": "own forward pass, batched",  # chunks
    "mpt": "own forward pass, by length",  # ALiBi from places, in a table of as many as the context has
    "deepseek_v4": "own forward pass, by length",  # blocks of compressed tokens, longer than the trial's sequences
    "bloom": "own forward pass, batched",  # ALiBi from the mask
    "gpt_oss": "own forward pass, batched",  # sinks, experts
    "jamba": "own forward pass, batched",  # recurrent layers beside attention
    "qwen3_next": "own forward pass, batched",  # linear attention beside attention
    "gemma3": "own forward pass, batched",  # a model that also takes images
    "phi3, long rotary": "own forward pass, batched",
    "mamba": "own forward pass, by length",  # recurrent, and not known to ignore padding
    "openai-gpt": "own forward pass, without a cache",  # has none
    "nemotron_h": "own forward pass, without a cache",  # its cache gives other logits
    "gpt2, attention scaled by layer": "own forward pass, batched",
    "gpt2, attention not scaled": "own forward pass, batched",
    "llama, partial rotary": "own forward pass, batched",
    "llama": "fused",
}


@pytest.mark.parametrize("name", KINDS)
def test_numbers_are_those_of_the_own_forward_pass(name: str) -> None:
    outcome = measure(MAKE[name], "float32", lora=False)
    assert outcome.right and outcome.how == KINDS[name], outcome


@pytest.mark.parametrize(("name", "dtype"), [("gemma2", "float32"), ("mistral", "bfloat16"), ("llama", "float32")])
def test_numbers_with_adapters_are_those_of_the_own_forward_pass(name: str, dtype: str) -> None:
    outcome = measure(MAKE[name], dtype, lora=True)
    assert outcome.right and outcome.how == KINDS[name], outcome


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("bert", "BertLMHeadModel is not a causal language model as it is configured"),
        ("roberta, as a decoder", "RobertaForCausalLM counts positions from its tokens and skips the padding token 0"),
        ("llama, prefix tuning", "peft's PREFIX_TUNING puts virtual tokens before every prompt"),
        ("llama, prompt tuning", "peft's PROMPT_TUNING puts virtual tokens before every prompt"),
    ],
)
def test_what_cannot_be_right_is_refused_in_one_sentence(name: str, sentence: str) -> None:
    with pytest.raises(ModelError, match=sentence) as caught:
        runner(MAKE[name](), LocalBackend(), CPU)
    assert "\n" not in str(caught.value)


def test_a_model_that_needs_more_than_tokens_is_refused_with_its_own_words() -> None:
    model = tiny_model("gpt_neox")

    def wants_images(*_: Any, **__: Any) -> None:
        raise ValueError("You must give pixel_values")

    model.gpt_neox.forward = wants_images
    with pytest.raises(ModelError, match=r"cannot be run on tokens alone \(ValueError: You must give pixel_values\)"):
        runner(model, LocalBackend(), CPU)


def test_an_architecture_that_nobody_knows_runs_without_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("gpt_neox")
    assert own_forward(model, CPU, half=False).pads_left
    model.config.model_type = "of tomorrow"
    assert not own_forward(model, CPU, half=False).pads_left


def test_a_cache_that_forgets_is_not_used(caplog: pytest.LogCaptureFixture) -> None:
    model = tiny_model("gpt_neox")
    inner = model.gpt_neox.forward

    def forgetful(*args: Any, past_key_values: Any = None, **kwargs: Any) -> Any:
        return inner(*args, **kwargs)

    forgetful.__signature__ = None  # type: ignore[attr-defined]
    model.gpt_neox.forward = forgetful
    assert own_forward(model, CPU, half=False).cache is None
    assert "decoded without a cache" in caplog.text


@pytest.mark.parametrize("setting", ["scale_attn_by_inverse_layer_idx", "scale_attn_weights"])
def test_a_fresh_variant_is_noticed_by_config_and_by_trial(setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=64, **SPECIAL)
    assert not isinstance(fused_decoder(AutoModelForCausalLM.from_config(plain).eval()), str)
    config = GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=64, **SPECIAL)
    setattr(config, setting, not getattr(config, setting))
    model = AutoModelForCausalLM.from_config(config).eval()
    assert str(fused_decoder(model)) == f"{setting}={getattr(config, setting)}"
    monkeypatch.setattr(fused, "obstacle", lambda _: None)
    assert fused_decoder(model) == "its forward pass gives other logits than the fused decoder"


def test_a_field_that_is_new_makes_a_model_slow_and_not_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("llama")
    assert understood.obstacle(model) is None
    model.config.pretraining_tp = 2
    assert understood.obstacle(model) == "pretraining_tp=2"
    monkeypatch.setattr(understood, "ANY_VALUE", understood.ANY_VALUE | {"pretraining_tp"})
    assert understood.obstacle(model) is None


def test_a_window_counts_whatever_else_the_config_holds() -> None:
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    # Wider than the trial's sequences, so that only the config shows it.
    config = MistralConfig(**sizes, num_key_value_heads=1, sliding_window=16, max_window_layers=2, **SPECIAL)
    assert fused_decoder(AutoModelForCausalLM.from_config(config).eval()) == "sliding_window=16"


@pytest.mark.parametrize(("setting", "value"), [("max_norm", 0.5), ("scale_grad_by_freq", True)])
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_an_embedding_that_does_more_than_to_look_up_makes_a_model_slow(kind: str, setting: str, value: float) -> None:
    model = tiny_model(kind)
    setattr(model.get_input_embeddings(), setting, value)
    assert fused_decoder(model) == "the embedding bounds its norms or scales its gradient"


def test_an_adapter_that_the_fused_decoder_cannot_call_makes_a_model_slow() -> None:
    peft = pytest.importorskip("peft")
    config = peft.OFTConfig(oft_block_size=4, target_modules=["q_proj"])  # takes four dimensions for an image
    model = peft.get_peft_model(tiny_model("llama"), config).eval()
    assert "cannot be called by the fused decoder (RuntimeError: " in str(fused_decoder(model))
    assert isinstance(runner(model, LocalBackend(), CPU), Module)


def test_a_soft_cap_is_seen_in_a_fresh_model() -> None:
    capped = build("gemma2", {"initializer_range": 0.02})
    assert not Module.of(capped).separate
    capped.config.final_logit_softcapping = None
    assert Module.of(capped).separate


def test_a_trial_leaves_every_bit_of_the_weights_and_no_hook() -> None:
    class Weights(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            awkward = torch.tensor([[0.0, -0.0, 1e-42, float("nan")], [1e-30, -3e-39, 0.01, 3e38]])
            matrices = (torch.randn(300, 300) * 1e-3, awkward, torch.zeros(4, 3), torch.ones(5))
            self.weights = nn.ParameterList([*matrices, torch.randn(300, 300, dtype=torch.bfloat16) * 1e-3])

    model, state = Weights(), torch.get_rng_state()
    before = [w.detach().clone().flatten().view(torch.uint8) for w in model.weights]
    with pytest.raises(ZeroDivisionError), lively(model):
        changed = [
            not torch.equal(w.flatten().view(torch.uint8), b) for w, b in zip(model.weights, before, strict=True)
        ]
        raise ZeroDivisionError
    assert sum(changed) >= 4
    after = [w.detach().flatten().view(torch.uint8) for w in model.weights]
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))
    assert torch.equal(torch.get_rng_state(), state)


@torch.no_grad()
def test_half_precision_weights_compute_in_float32_for_the_trial() -> None:
    model = tiny_model("gpt_neox").bfloat16()
    before, tokens = [p.data for p in model.parameters()], torch.tensor([[3, 4, 5]])
    with in_float32(model):
        got = model(input_ids=tokens).logits
    assert all(a is b.data or torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert all(p.dtype == torch.bfloat16 for p in model.parameters())
    torch.testing.assert_close(got, model.float()(input_ids=tokens).logits, atol=1e-4, rtol=1e-4)


def test_the_context_is_that_of_the_language_model(caplog: pytest.LogCaptureFixture) -> None:
    assert context_length(MAKE["gemma3"]()) == 64
    assert context_length(MAKE["mpt"]()) == 64
    assert context_length(MAKE["bloom"]()) == context_length(MAKE["mamba"]()) == NO_LIMIT
    long = MAKE["phi3, long rotary"]()
    assert context_length(long) == 32
    with caplog.at_level(logging.WARNING):
        warn_of_shortened_context(long)
    assert "taken as 32 tokens, not 64" in caplog.text
    model = tiny_model("gpt_neox")
    vars(model.config)["max_position_embeddings"] = None
    with pytest.raises(ModelError, match="a gpt_neox model does not give a context length"):
        context_length(model)


@pytest.mark.parametrize(
    ("kind", "settings", "attended"),
    [
        ("deepseek_v32", {"index_topk": 12}, 12),
        ("deepseek_v4", {"index_topk": 2}, 24),  # blocks of 12 tokens
        ("doge", {"keep_window_size": 12}, 12),
        ("minimax_m3_vl_text", {"index_block_size": 4, "index_topk_blocks": 3}, 12),
        ("deepseek_v32", {"index_topk": 2048}, 64),
    ],
)
def test_the_context_ends_where_attention_chooses_among_tokens(
    kind: str, settings: dict[str, Any], attended: int, caplog: pytest.LogCaptureFixture
) -> None:
    model = build(kind, SPECIAL_OF.get(kind, {}) | settings)
    assert context_length(model) == attended
    with caplog.at_level(logging.WARNING):
        warn_of_shortened_context(model)
    said = f"taken as {attended} tokens, not 64: behind them, its attention chooses among the earlier tokens"
    assert (said in caplog.text) == (attended < 64)


@pytest.mark.parametrize("name", ["deepseek_v32", "gpt2, attention not scaled", "gpt_neo", "mpt", "opt"])
def test_prompts_of_different_lengths_can_fill_the_context(name: str) -> None:
    backend = TorchBackend(MAKE[name](), None, LocalBackend(device="cpu"))
    full = backend.context_length
    prompts = [(7,) * (full - 1), (8,) * (full - 9), (9,) * 5]
    completions = asyncio.run(backend.sample(prompts, SamplingParams(10), [0, 1, 2]))
    assert [len(c.tokens) for c in completions] == [1, 9, 10]
    data = [sampled_datum(p, c) for p, c in zip(prompts, completions, strict=True)]
    for datum, again in zip(data, asyncio.run(backend.logprobs(data)), strict=True):
        np.testing.assert_allclose(again, datum.logprobs, atol=1e-4)


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    path = Path(__file__).parents[3] / "scripts" / "gen_model_docs.py"
    spec = importlib.util.spec_from_file_location("gen_model_docs", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    before = list(sys.path)
    spec.loader.exec_module(module)
    sys.path[:] = before
    return module


def test_the_page_lists_every_architecture_and_says_how_it_loads(generator: ModuleType) -> None:
    page = generator.PAGE.read_text(encoding="utf-8")
    listed = [line.split(" | ")[0].removeprefix("| ") for line in page.splitlines() if line.startswith("| ")][2:]
    assert listed == list(MAKE)
    for name in ("bert", "gemma2", "gpt2, upcast attention", "llama", "llama, prefix tuning", "mamba", "openai-gpt"):
        assert generator.row(name, MAKE[name]) in page
