"""The fused decoder computes what the Hugging Face module computes, prompt shared or not, cached or not."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM, MistralConfig

from assay.backends.local.architectures.fused import fused_decoder
from assay.backends.local.decoder import ContinuationCache, Decoder, extend, prefill
from support.tiny_models import FUSED, VOCAB, tiny_model


@pytest.mark.parametrize("name", FUSED)
@torch.no_grad()
def test_shared_prompts_give_the_modules_logits(name: str) -> None:
    model = tiny_model(name)
    decoder = fused_decoder(model)
    assert isinstance(decoder, Decoder)
    tokens, lengths = torch.randint(1, VOCAB, (3, 9)), torch.tensor([9, 4, 6])
    continuations = torch.randint(1, VOCAB, (3, 2, 5))
    _, prefix = prefill(decoder, tokens, lengths)
    logits = decoder.head(extend(decoder, prefix, continuations))
    for p in range(3):
        for g in range(2):
            whole = torch.cat([tokens[p, : lengths[p]], continuations[p, g]])[None]
            want = model(input_ids=whole).logits[0, lengths[p] :]
            torch.testing.assert_close(logits[p, g], want, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("name", FUSED)
@torch.no_grad()
def test_token_by_token_equals_all_at_once(name: str) -> None:
    model = tiny_model(name)
    decoder = fused_decoder(model)
    assert isinstance(decoder, Decoder)
    _, prefix = prefill(decoder, torch.randint(1, VOCAB, (2, 7)), torch.tensor([7, 5]))
    tokens = torch.randint(1, VOCAB, (2, 3, 6))
    cache = ContinuationCache(prefix, group=3, capacity=2)
    steps = []
    for t in range(6):
        if cache.length == cache.capacity:
            cache.grow(2 * cache.capacity)
        steps.append(extend(decoder, prefix, tokens[:, :, t : t + 1], cache))
    torch.testing.assert_close(torch.cat(steps, 2), extend(decoder, prefix, tokens), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("padding", [0, 10, 50])
@torch.no_grad()
def test_padding_does_not_change_a_continuation(padding: int) -> None:
    model = tiny_model("gpt2")
    decoder = fused_decoder(model)
    assert isinstance(decoder, Decoder)
    prompt, continuation = torch.randint(1, VOCAB, (1, 6)), torch.randint(1, VOCAB, (1, 1, 4))
    padded = torch.cat([prompt, torch.full((1, padding), 3)], dim=1)
    _, bare = prefill(decoder, prompt, torch.tensor([6]))
    _, prefix = prefill(decoder, padded, torch.tensor([6]))
    want = extend(decoder, bare, continuation)
    torch.testing.assert_close(extend(decoder, prefix, continuation), want, atol=1e-5, rtol=1e-5)


def test_unknown_or_windowed_attention_is_left_to_the_module() -> None:
    assert "no fused decoder for the model type gpt_neox" in str(fused_decoder(tiny_model("gpt_neox")))
    config = MistralConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=4,
        sliding_window=4,
    )
    assert fused_decoder(AutoModelForCausalLM.from_config(config)) == "sliding_window=4"


def test_a_variant_that_computes_something_else_is_noticed() -> None:
    model = tiny_model("gpt2")
    # GPT-2's own option to scale attention by layer: same weights, other numbers.
    for index, block in enumerate(model.transformer.h):
        block.attn.scaling = block.attn.scaling / (index + 2)
    assert "a layer scales its attention" in str(fused_decoder(model))


@torch.no_grad()
def test_attention_stays_in_float32_under_autocast() -> None:
    class Products(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.dtypes: dict[str, set[torch.dtype]] = {}

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            out = func(*args, **(kwargs or {}))
            name = func.overloadpacket.__name__
            self.dtypes.setdefault(name, set()).add(getattr(out[0] if isinstance(out, tuple) else out, "dtype", None))
            return out

    model = tiny_model("gpt2")
    decoder = fused_decoder(model)
    assert isinstance(decoder, Decoder)
    with Products() as products, torch.autocast("cpu", torch.bfloat16):
        _, prefix = prefill(decoder, torch.randint(1, VOCAB, (2, 7)), torch.tensor([7, 5]))
        extend(decoder, prefix, torch.randint(1, VOCAB, (2, 3, 4)))
    assert products.dtypes["addmm"] == {torch.bfloat16}
    attention = [name for name in products.dtypes if "bmm" in name or "attention" in name]
    assert len(attention) == 3 and all(products.dtypes[name] == {torch.float32} for name in attention), products.dtypes
