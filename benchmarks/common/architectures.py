"""Tiny models of transformers' causal architectures, with random weights: what Assay's numbers are held against.

Windows and chunks are 6 tokens, so that prompts of a dozen go beyond them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

Settings = dict[str, Any]
Make = Callable[[], Any]

SMALL: Settings = {
    **{"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{"num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64, "sliding_window": 6},
    **{"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "n_inner": 48, "rotary_dim": 4},
    **{"d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 64, "num_layers": 2, "num_heads": 4},
    **{"ffn_dim": 48, "decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 48},
    **{"word_embed_proj_dim": 32, "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4},
    **{"num_experts_per_tok": 2, "moe_intermediate_size": 16, "n_shared_experts": 1, "num_shared_experts": 1},
    **{"n_group": 1, "topk_group": 1, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "v_head_dim": 8},
    **{"qk_rope_head_dim": 8, "first_k_dense_replace": 1, "attention_chunk_size": 6, "intermediate_size_mlp": 48},
    **{"shared_expert_intermediate_size": 16, "state_size": 8, "use_sliding_window": True, "max_window_layers": 1},
    **{"mamba_d_state": 8, "mamba_d_head": 8, "mamba_n_heads": 8, "mamba_n_groups": 1, "mamba_expand": 2},
    **{"linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 4},
    **{"lru_width": 32, "attention_window_size": 6, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
}
"""What a config gets of this where it has such a field."""

NAMES = """
    afmoe apertus arcee aria_text bailing_hybrid bamba bart bert bigbird_pegasus biogpt bitnet blenderbot bloom
    codegen cohere cohere2 cohere2_moe ctrl cwm dbrx deepseek_v2 deepseek_v3 deepseek_v32 deepseek_v4 diffllama
    doge dots1 ernie4_5 ernie4_5_moe exaone4 exaone_moe falcon falcon_h1 falcon_mamba flex_olmo gemma gemma2
    gemma3 gemma3_text glm glm4 glm4_moe glm4_moe_lite gpt2 gpt_bigcode gpt_neo gpt_neox gpt_neox_japanese gpt_oss
    gptj granite granitemoe granitemoehybrid granitemoeshared helium hunyuan_v1_dense hunyuan_v1_moe hyperclovax
    internlm3 jais2 jamba jetmoe lfm2 lfm2_moe llama llama4_text mamba mamba2 marian mbart mimo_v2_flash minicpm3
    minimax minimax_m2 ministral ministral3 mistral mixtral modernbert-decoder moshi mpt mvp nanochat nemotron
    nemotron_h olmo olmo2 olmo3 olmo_hybrid olmoe openai-gpt opt pegasus persimmon phi phi3 phimoe plbart
    prophetnet qwen2 qwen2_moe qwen3 qwen3_5_moe_text qwen3_5_text qwen3_moe qwen3_next recurrent_gemma roberta
    rwkv seed_oss smollm3 solar_open stablelm starcoder2 trocr vaultgemma xglm xlnet xlstm youtu zamba zamba2
"""
"""Model types with what SMALL makes of them, changed by SPECIAL."""

LATENT: Settings = {"num_key_value_heads": 4, "head_dim": None}
HYBRID: Settings = {"layer_types": ["linear_attention", "full_attention"]}
SPECIAL: dict[str, Settings] = {
    "bailing_hybrid": HYBRID | {"num_key_value_heads": 4},
    "bamba": {"attn_layer_indices": [1]},
    "dbrx": {
        "ffn_config": {"ffn_hidden_size": 48, "hidden_size": 32, "moe_top_k": 2},
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 1e4},
    },
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe_lite", "youtu"), LATENT),
    "deepseek_v4": {
        "num_hidden_layers": 3,
        "layer_types": ["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"],
        "compress_rates": {"compressed_sparse_attention": 12, "heavily_compressed_attention": 13},
        **{"index_n_heads": 4, "index_head_dim": 16},
    },
    "falcon_h1": {"mamba_d_ssm": 64},
    "gemma3": {
        "text_config": {"model_type": "gemma3_text", "layer_types": ["sliding_attention", "full_attention"]}
        | {k: SMALL[k] for k in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "head_dim")}
        | {k: SMALL[k] for k in ("num_attention_heads", "num_key_value_heads", "max_position_embeddings")}
        | {"sliding_window": 6},
        "vision_config": {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
        | {"model_type": "siglip_vision_model", "image_size": 28, "patch_size": 14},
        "mm_tokens_per_image": 4,
        "image_token_index": 63,
    },
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 6},
    "granitemoehybrid": HYBRID | {"shared_intermediate_size": 16},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_dt_rank": 4},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "minicpm3": LATENT | {"dim_model_base": 32},
    "mamba2": {"num_heads": 8, "head_dim": 8, "n_groups": 1},
    "minimax": HYBRID,
    "nemotron_h": {
        "layers_block_type": ["linear_attention", "full_attention", "mlp"],
        "mamba_num_heads": 8,
        "mamba_head_dim": 8,
        "n_groups": 1,
        "ssm_state_size": 8,
        "chunk_size": 4,
    },
    "olmo_hybrid": HYBRID,
    **dict.fromkeys(("qwen3_5_moe_text", "qwen3_5_text", "qwen3_next"), HYBRID),
    "recurrent_gemma": {"num_hidden_layers": 3, "block_types": ["recurrent", "recurrent", "attention"]},
    "zamba": {
        "num_hidden_layers": 4,
        "layers_block_type": ["linear_attention", "hybrid"] * 2,
        "mamba_dt_rank": 4,
        "n_mamba_heads": 2,
        "attention_head_dim": 16,
        "attention_hidden_size": 64,
    },
    "zamba2": {
        "num_hidden_layers": 4,
        "layers_block_type": ["linear_attention", "hybrid"] * 2,
        "mamba_ngroups": 1,
        "mamba_headdim": 8,
        "n_mamba_heads": 8,
        "attention_head_dim": 16,
        "num_mem_blocks": 1,
        "chunk_size": 4,
        "adapter_rank": 4,
    },
}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
VARIANTS: dict[str, tuple[str, Settings]] = {
    "bert, as a decoder": ("bert", {"is_decoder": True}),
    "roberta, as a decoder": ("roberta", {"is_decoder": True}),
    "falcon, ALiBi": ("falcon", {"alibi": True}),
    "falcon, parallel blocks": ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 2}),
    "gpt2, attention scaled by layer": ("gpt2", {"scale_attn_by_inverse_layer_idx": True}),
    "gpt2, attention not scaled": ("gpt2", {"scale_attn_weights": False}),
    "gpt2, upcast attention": ("gpt2", {"reorder_and_upcast_attn": True}),
    "granite, every multiplier": (
        "granite",
        {"logits_scaling": 4.0, "embedding_multiplier": 3.0, "residual_multiplier": 0.5, "attention_multiplier": 0.5},
    ),
    "llama, biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, tied embeddings": ("llama", {"tie_word_embeddings": True}),
    "llama, partial rotary": (
        "llama",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
    ),
    "llama, dynamic rotary": ("llama", {"rope_parameters": DYNAMIC}),
    "llama, Llama 3 rotary": (
        "llama",
        {
            "rope_parameters": {
                **{"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0},
                **{"high_freq_factor": 4.0, "original_max_position_embeddings": 16},
            }
        },
    ),
    "llama, YaRN": (
        "llama",
        {
            "rope_parameters": {
                **{"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}
            }
        },
    ),
    "mistral, no window": ("mistral", {"sliding_window": None}),
    "opt, post-norm": ("opt", {"do_layer_norm_before": False, "word_embed_proj_dim": 16}),
    "phi3, long rotary": (
        "phi3",
        {
            "original_max_position_embeddings": 32,
            "rope_parameters": {
                **{"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 32},
                **{"short_factor": [1.0] * 4, "long_factor": [4.0] * 4},
            },
        },
    ),
    "qwen2, no window": ("qwen2", {"use_sliding_window": False}),
    "qwen3, no window": ("qwen3", {"use_sliding_window": False}),
}
"""Forms of a type that compute something else."""


def tiny_config(kind: str, settings: Settings) -> Any:
    """The config of a model of type `kind`: SMALL where it has such fields, then `settings`."""
    cls = CONFIG_MAPPING[kind]
    fields = {f.name for f in dataclasses.fields(cls)}
    given = {k: v for k, v in (SMALL | settings).items() if k in fields or k in settings}
    return cls(**{k: v for k, v in given.items() if v is not None or k in ("sliding_window",)})


def build(kind: str, settings: Settings) -> Any:
    """The model, with the same random weights each time."""
    transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(tiny_config(kind, settings)).eval()  # type: ignore[no-untyped-call]


def catalogue() -> dict[str, Make]:
    """Every architecture and form by name: what builds its model."""
    plain = {kind: partial(build, kind, SPECIAL.get(kind, {})) for kind in NAMES.split()}
    forms = {name: partial(build, kind, SPECIAL.get(kind, {}) | more) for name, (kind, more) in VARIANTS.items()}
    return dict(sorted({**plain, **forms, **_prompt_learning()}.items()))


def _prompt_learning() -> dict[str, Make]:
    def wrapped(kind: str) -> Any:
        from peft import PrefixTuningConfig, PromptTuningConfig, get_peft_model

        config = {"prefix": PrefixTuningConfig, "prompt": PromptTuningConfig}[kind]
        return get_peft_model(build("llama", {}), config(task_type="CAUSAL_LM", num_virtual_tokens=4))

    return {f"llama, {kind} tuning": partial(wrapped, kind) for kind in ("prefix", "prompt")}
