"""Chat templates in the forms of well-known model families, and small real tokenizers that have them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from assay.backends.local.models import train_tokenizer
from assay.envs.base import TokenizerCorpus

QWEN25 = """\
{%- if messages[0].role != 'system' %}{{- '<|im_start|>system\\nYou are a helper.<|im_end|>\\n' }}{%- endif %}
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""

QWEN3 = """\
{%- set ns = namespace(last=messages|length - 1) %}
{%- for message in messages %}{%- if message.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}
{%- for message in messages %}
{%- if message.role == 'assistant' %}
{%- set thought = '' %}{%- set content = message.content %}
{%- if '</think>' in content %}
{%- set thought = content.split('</think>')[0].split('<think>')[-1].strip('\\n') %}
{%- set content = content.split('</think>')[-1].lstrip('\\n') %}
{%- endif %}
{%- if loop.index0 > ns.last %}{%- set content = '<think>\\n' + thought + '\\n</think>\\n\\n' + content %}{%- endif %}
{{- '<|im_start|>assistant\\n' + content + '<|im_end|>\\n' }}
{%- else %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}"""
"""The model opens its thought itself; thoughts of earlier turns are dropped."""

OPENED = """\
{%- for message in messages %}
{%- set content = message.content %}
{%- if message.role == 'assistant' %}{%- set content = content.split('</think>')[-1].lstrip('\\n') %}{%- endif %}
{{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n<think>\\n' }}{%- endif %}"""
"""As DeepSeek-R1 and QwQ: the prompt opens the thought, and thoughts of earlier turns are dropped."""

LLAMA3 = """\
{{- bos_token }}
{%- set date = date_string if date_string is defined else strftime_now('%d %b %Y') %}
{%- set first = 0 %}{%- set system = '' %}
{%- if messages[0].role == 'system' %}{%- set first = 1 %}{%- set system = messages[0].content | trim %}{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\nToday: ' + date + '\\n\\n' + system + '<|eot_id|>' }}
{%- for message in messages[first:] %}
{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + message.content | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}"""
"""Contents are trimmed, and the date is written."""

GEMMA = """\
{{- bos_token }}
{%- if messages[0].role == 'system' %}{{- raise_exception('System role not supported') }}{%- endif %}
{%- for message in messages %}
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}{{- raise_exception('Roles must alternate') }}{%- endif %}
{%- set role = 'model' if message.role == 'assistant' else message.role %}
{{- '<start_of_turn>' + role + '\\n' + message.content | trim + '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<start_of_turn>model\\n' }}{%- endif %}"""
"""No system role; turns end on another token than the tokenizer's end of sequence."""

MISTRAL = """\
{%- if messages[0].role == 'system' %}{%- set system = messages[0].content %}{%- set turns = messages[1:] %}
{%- else %}{%- set system = '' %}{%- set turns = messages %}{%- endif %}
{{- bos_token }}
{%- for message in turns %}
{%- if message.role == 'user' %}
{%- if loop.last and system %}{{- '[INST] ' + system + '\\n\\n' + message.content + '[/INST]' }}
{%- else %}{{- '[INST] ' + message.content + '[/INST]' }}{%- endif %}
{%- else %}{{- ' ' + message.content + eos_token }}{%- endif %}
{%- endfor %}"""
"""The system message stands in the last user message, wherever the conversation has come to."""

TEMPLATES = {
    "qwen2.5": (QWEN25, "<|im_end|>", ("<|im_start|>",)),
    "qwen3": (QWEN3, "<|im_end|>", ("<|im_start|>",)),
    "opened": (OPENED, "<|im_end|>", ("<|im_start|>",)),
    "llama3": (LLAMA3, "<|eot_id|>", ("<|begin|>", "<|start_header_id|>", "<|end_header_id|>")),
    "gemma": (GEMMA, "<eos>", ("<bos>", "<start_of_turn>", "<end_of_turn>")),
    "mistral": (MISTRAL, "</s>", ("<s>", "[INST]", "[/INST]")),
}
"""Family -> template, end-of-sequence token, other special tokens (with the first token of a text first, if any)."""
BEGINS = {"llama3": "<|begin|>", "gemma": "<bos>", "mistral": "<s>"}
CORPUS = TokenizerCorpus(
    ["which one of these is right then? say so, and no more than that."] * 3,
    "[a-z]+",
    "".join(map(chr, range(32, 127))) + "\n\x00\x1b",
)


def chat_tokenizer(family: str, corpus: TokenizerCorpus = CORPUS) -> Any:
    """A real tokenizer with a family's template and special tokens."""
    template, end, others = TEMPLATES[family]
    tokenizer = train_tokenizer(corpus, 200)
    special: dict[str, Any] = {"eos_token": end, "additional_special_tokens": list(others)}
    if family in BEGINS:
        special["bos_token"] = BEGINS[family]
    tokenizer.add_special_tokens(special)
    tokenizer.chat_template = template
    return tokenizer


def chat_model(folder: Path, family: str) -> Path:
    """A tiny model with a chat tokenizer, saved as a hub would have it."""
    tokenizer = chat_tokenizer(family)
    shape = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    ids = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.eos_token_id}
    config = LlamaConfig(**shape, **ids, vocab_size=len(tokenizer), max_position_embeddings=512)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
