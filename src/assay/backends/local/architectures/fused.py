"""Hugging Face models as a `Decoder`: where the weights of each architecture are.

Covers pre-norm decoders with full attention: GPT-2 and the Llama family (Llama, Mistral, Qwen2, Qwen3). Which models
fit is decided by `understood`, and then tried.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from assay.backends.local.architectures.lively import lively
from assay.backends.local.architectures.own_forward import FAILURES, failure_line
from assay.backends.local.architectures.precision import agree, exact_products
from assay.backends.local.architectures.understood import obstacle
from assay.backends.local.decoder import Angles, Decoder, Layer, Projection, extend, prefill


def fused_decoder(model: Any) -> Decoder | str:
    """A `Decoder` over the weights of a Hugging Face causal LM (bare or wrapped by peft), or why there is none.

    The classes and the config of the model decide. The decoder is then tried on random tokens against the module's own
    forward pass, with weights at which a difference shows, so that a variant is slow rather than wrong.
    """
    if why := obstacle(model):
        return why
    decoder = (_gpt2 if model.config.model_type == "gpt2" else _llama)(model, model.config)
    try:
        if _agrees(decoder, model):
            return decoder
    except FAILURES as error:  # of an adapter, say, that takes four dimensions for an image
        return f"its parts cannot be called by the fused decoder ({failure_line(error)})"
    return "its forward pass gives other logits than the fused decoder"


@torch.no_grad()
def _agrees(decoder: Decoder, model: nn.Module) -> bool:
    weight: Tensor = model.get_input_embeddings().weight  # type: ignore[operator]
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(len(weight), (2, 9), generator=generator).to(weight.device)
    five = torch.full((2,), 5)
    with exact_products(), lively(model):
        want = model(input_ids=tokens, attention_mask=torch.ones_like(tokens)).logits[:, 4:]
        _, prefix = prefill(decoder, tokens[:, :5], five)
        last, _ = prefill(decoder, tokens[:, :5], five, torch.tensor([4, 9], device=weight.device))
        hidden = extend(decoder, prefix, tokens[:, None, 5:])[:, 0]
        return agree(decoder.head(torch.cat([last[:, None], hidden], dim=1)), want, weight.dtype)


def _projection(module: nn.Module) -> Projection:
    """The map of a linear layer; plain layers skip the module machinery, adapters keep it."""
    if type(module) is nn.Linear:
        return lambda x: F.linear(x, module.weight, module.bias)
    if type(module) is Conv1D:
        return lambda x: torch.addmm(module.bias, x.reshape(-1, x.shape[-1]), module.weight).view(*x.shape[:-1], -1)
    return module


def _gpt2(model: Any, config: Any) -> Decoder:
    body = model.get_base_model() if hasattr(model, "get_base_model") else model
    trunk, heads = body.transformer, config.n_head
    width = config.n_embd // heads

    def layer(block: Any) -> Layer:
        attention_in, attention_out = _projection(block.attn.c_attn), _projection(block.attn.c_proj)
        mlp_in, mlp_out = _projection(block.mlp.c_fc), _projection(block.mlp.c_proj)
        activation = block.mlp.act
        if config.activation_function == "gelu_new":
            activation = _gelu_tanh

        def enter(x: Tensor, _: Angles | None) -> tuple[Tensor, Tensor, Tensor]:
            q, k, v = attention_in(block.ln_1(x)).view(*x.shape[:-1], 3, heads, width).unbind(-3)
            return q, k, v

        def leave(x: Tensor, attended: Tensor) -> Tensor:
            x = x + attention_out(attended)
            return x + mlp_out(activation(mlp_in(block.ln_2(x))))

        return Layer(enter, leave)

    def embed(tokens: Tensor, positions: Tensor) -> Tensor:
        # Padding and finished rows may lie past the last position; what is computed for them is never read.
        positions = positions.clamp(max=len(trunk.wpe.weight) - 1)
        return F.embedding(tokens, trunk.wte.weight) + F.embedding(positions, trunk.wpe.weight)

    return Decoder(
        embed=embed,
        rotary=None,
        layers=tuple(layer(block) for block in trunk.h),
        final_norm=trunk.ln_f,
        head=_projection(body.lm_head),
        query_heads=heads,
        key_heads=heads,
        head_dim=width,
    )


def _gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def _llama(model: Any, config: Any) -> Decoder:
    body = model.get_base_model() if hasattr(model, "get_base_model") else model
    trunk = body.model
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads

    def rotary(x: Tensor, positions: Tensor) -> Angles:
        cos, sin = trunk.rotary_emb(x, positions.reshape(1, -1))
        shape = (*positions.shape, 1, width)
        return cos.view(shape), sin.view(shape)

    def layer(block: Any) -> Layer:
        attention = block.self_attn
        to_q, to_k, to_v = (_projection(m) for m in (attention.q_proj, attention.k_proj, attention.v_proj))
        attention_out = _projection(attention.o_proj)
        gate, up, down = (_projection(m) for m in (block.mlp.gate_proj, block.mlp.up_proj, block.mlp.down_proj))
        activation = block.mlp.act_fn
        q_norm, k_norm = getattr(attention, "q_norm", _identity), getattr(attention, "k_norm", _identity)

        def enter(x: Tensor, angles: Angles | None) -> tuple[Tensor, Tensor, Tensor]:
            assert angles is not None
            x = block.input_layernorm(x)
            q, k, v = (project(x).view(*x.shape[:-1], -1, width) for project in (to_q, to_k, to_v))
            return _rotate(q_norm(q), *angles), _rotate(k_norm(k), *angles), v

        def leave(x: Tensor, attended: Tensor) -> Tensor:
            x = x + attention_out(attended)
            y = block.post_attention_layernorm(x)
            return x + down(activation(gate(y)) * up(y))

        return Layer(enter, leave)

    return Decoder(
        # The embedding of the padding token gets no gradient, as in the module.
        embed=lambda tokens, _: F.embedding(tokens, trunk.embed_tokens.weight, trunk.embed_tokens.padding_idx),
        rotary=rotary,
        layers=tuple(layer(block) for block in trunk.layers),
        final_norm=trunk.norm,
        head=_projection(body.lm_head),
        query_heads=config.num_attention_heads,
        key_heads=config.num_key_value_heads,
        head_dim=width,
    )


def _identity(x: Tensor) -> Tensor:
    return x


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin
