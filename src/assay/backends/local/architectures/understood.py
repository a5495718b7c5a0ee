"""What the fused decoder understands of a Hugging Face model, decided by its classes and its config.

Whatever is not listed here has to be at its default: a field that a later version of transformers adds, or a variant
that nobody has thought of, makes a model slow rather than wrong.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

CLASSES = {
    "gpt2": "GPT2LMHeadModel",
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
"""Model types that have a fused decoder, with their only class."""

ANY_VALUE = frozenset(
    {
        # Sizes, which the shapes of the weights hold already.
        *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "head_dim"),
        *("num_key_value_heads", "max_position_embeddings", "n_positions", "n_embd", "n_layer", "n_head", "n_inner"),
        # What the module's own parts do, which the decoder calls.
        *("hidden_act", "activation_function", "rms_norm_eps", "layer_norm_epsilon", "attention_bias", "mlp_bias"),
        "tie_word_embeddings",
        # Dropout is off outside of training mode.
        *("attention_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop", "summary_first_dropout"),
        # Nothing of a forward pass.
        *("initializer_range", "use_cache", "pad_token_id", "bos_token_id", "eos_token_id"),
        *("summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels"),
        # Decided with the layers' types and the window.
        "max_window_layers",
    }
)
"""Fields whose value the decoder takes from the module, or that do not touch the logits."""

BY_LAYER = frozenset({"qwen2", "qwen3"})
"""Model types whose layers of the type `full_attention` ignore `sliding_window`."""
STATIC_ROPE = frozenset({"default", "linear", "llama3", "yarn"})
"""Rotary positions whose angles depend on the position alone, and not on the longest sequence at hand."""
ROPE_KEYS = frozenset(
    {
        *("rope_type", "type", "rope_theta", "factor", "original_max_position_embeddings"),
        *("low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "attention_factor", "mscale"),
        *("mscale_all_dim", "truncate", "partial_rotary_factor"),
    }
)


def base_of(model: Any) -> Any:
    """The causal LM itself, without what peft wraps round it."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def obstacle(model: nn.Module) -> str | None:
    """What of a causal LM (bare or wrapped by peft) the fused decoder does not understand; None if it may be tried."""
    body = base_of(model)
    config = body.config
    kind = config.model_type
    if kind not in CLASSES:
        return f"there is no fused decoder for the model type {kind}"
    if getattr(config, "is_heterogeneous", False):
        return "its layers differ in their config"
    return _foreign_class(body, kind) or _foreign_field(config) or _foreign_part(body, config)


def _foreign_class(body: Any, kind: str) -> str | None:
    """Another class than the library's own: a subclass may compute anything."""
    home = f"transformers.models.{kind}.modeling_{kind}"
    if type(body).__name__ != CLASSES[kind] or type(body).__module__ != home:
        return f"{type(body).__name__} is not transformers' {CLASSES[kind]}"
    for block in body.base_model.h if kind == "gpt2" else body.base_model.layers:
        attention = block.attn if kind == "gpt2" else block.self_attn
        for part in (block, attention, block.mlp):
            if type(part).__module__ != home:
                return f"a layer has a {type(part).__name__}, which is not transformers' own"
    return None


def _foreign_field(config: Any) -> str | None:
    """A declared field of the config with a value that is neither its default nor understood."""
    declared = {f.name: f for f in dataclasses.fields(config)}
    common = {f.name for f in dataclasses.fields(type(config).__mro__[1])}
    for name, value in sorted(vars(config).items()):
        if name in UNDERSTOOD:
            if not UNDERSTOOD[name](value, {**vars(config), "model_type": config.model_type}):
                return f"{name}={value}"
        elif name in declared and name not in common | ANY_VALUE and value != declared[name].default:
            return f"{name}={value}"
    return None


def _foreign_part(body: Any, config: Any) -> str | None:
    """A part that was changed after it was built, or that the decoder reads without calling it."""
    embeddings = [body.get_input_embeddings()]
    if config.model_type == "gpt2":
        embeddings.append(body.base_model.wpe)
    if any(type(embedding) is not nn.Embedding for embedding in embeddings):
        return "the embedding has an adapter"
    if any(embedding.max_norm is not None or embedding.scale_grad_by_freq for embedding in embeddings):
        return "the embedding bounds its norms or scales its gradient"
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    for block in body.base_model.h if config.model_type == "gpt2" else body.base_model.layers:
        attention = block.attn if config.model_type == "gpt2" else block.self_attn
        if attention.scaling != width**-0.5:
            return f"a layer scales its attention by {attention.scaling:g}"
    return None


def _static_rope(value: Any, _: Mapping[str, Any]) -> bool:
    rope = value or {}
    return (
        rope.keys() <= ROPE_KEYS
        and rope.get("rope_type", "default") in STATIC_ROPE
        and rope.get("partial_rotary_factor") in (None, 1, 1.0)
    )


def _all_full(value: Any, _: Mapping[str, Any]) -> bool:
    return set(value or ["full_attention"]) == {"full_attention"}


def _no_window(value: Any, config: Mapping[str, Any]) -> bool:
    # Only these types ask the layers' types whether to use the window. Any config may hold the others' fields.
    return not value or (config["model_type"] in BY_LAYER and _all_full(config.get("layer_types"), config))


UNDERSTOOD: dict[str, Callable[[Any, Mapping[str, Any]], bool]] = {
    "rope_parameters": _static_rope,
    "layer_types": _all_full,
    "sliding_window": _no_window,
    "use_sliding_window": lambda value, config: not value or _no_window(config.get("sliding_window"), config),
    "chunk_size_feed_forward": lambda value, _: not value,
    "add_cross_attention": lambda value, _: not value,
    "is_encoder_decoder": lambda value, _: not value,
}
"""Fields of which some values are understood: (value, the whole config) -> whether this one is."""
