"""Where a local model and its tokenizer come from: a folder, the hub, or random weights.

`load_pretrained` takes any Hugging Face causal LM. `build_scratch` makes a small transformer with random weights and
trains a byte-pair tokenizer on the data set's corpus, deterministically in the seed.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from tokenizers import Regex, Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import Split
from tokenizers.trainers import BpeTrainer
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.pytorch_utils import Conv1D
from transformers.utils import logging as transformers_logging

from assay.backends.config import LocalBackend, ScratchModel
from assay.envs.base import TokenizerCorpus
from assay.errors import MissingDependencyError, ModelError, first_line, pip_install

EOS = "<|eos|>"
TRAINED = "trained.safetensors"
"""Where a checkpoint holds trained weights that peft does not save."""
LORA_PARTS = frozenset(("lora_A", "lora_B", "lora_embedding_A", "lora_embedding_B", "lora_magnitude_vector"))
"""Modules of a LoRA layer with weights in them."""

# Assay shows its own progress; the library's bars would disrupt it at every checkpoint.
transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
# The hub's library prints by a handler of its own, and hands the same lines on to the program's: each would come twice.
logging.getLogger("huggingface_hub").handlers.clear()


@contextlib.contextmanager
def library_is_quiet() -> Iterator[None]:
    """Within it, peft asks transformers by names that the latter is about to drop, which is no news for a user."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"`\w*gradient_checkpointing\w*` is deprecated", FutureWarning)
        yield


def load_pretrained(name: str, dtype: torch.dtype) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A causal LM and its tokenizer by local folder or hub id.

    Raises:
        ModelError: the folder is missing or broken, or the hub cannot be reached.
    """
    tokenizer = load_tokenizer(name)
    with _loading(name):
        model = AutoModelForCausalLM.from_pretrained(source_of(name), dtype=dtype)
    return model, tokenizer


def load_config(name: str) -> Any:
    """The Hugging Face config of a model, without its weights.

    Raises:
        ModelError: as `load_pretrained`.
    """
    with _loading(name):
        return AutoConfig.from_pretrained(source_of(name))


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a model, without its weights.

    Raises:
        ModelError: as `load_pretrained`.
    """
    with _loading(name):
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(source_of(name))
    for circumstance in ("is_local", "local_files_only"):
        # They would be written out again, and the checkpoints of a resumed run differ from an uninterrupted one's.
        tokenizer.init_kwargs.pop(circumstance, None)
    if tokenizer.eos_token_id is None:
        raise ModelError(f"The tokenizer of {name} has no end-of-sequence token, so completions could not end.")
    return tokenizer


def source_of(name: str) -> str:
    """The source of a model: its folder, or the name as the hub has it.

    Raises:
        ModelError: it is written as a folder but is not one.
    """
    path = Path(name).expanduser()
    if (path.is_absolute() or name.startswith((".", "~"))) and not path.is_dir():
        raise ModelError(f"model_name={name} is not a folder. Give a folder with config.json and weights, or a hub id.")
    return str(path) if path.is_dir() else name


@contextlib.contextmanager
def _loading(name: str) -> Iterator[None]:
    """Context in which a model's files are read."""
    try:
        yield
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise ModelError(
            f"model_name={name} cannot be loaded ({first_line(error)}). It must be a folder with a Hugging Face "
            "causal LM and its tokenizer, or a hub id that this machine can reach."
        ) from error


def build_scratch(
    scratch: ScratchModel, corpus: TokenizerCorpus, seed: int
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A model with random weights and a tokenizer trained on `corpus`; the same seed gives the same weights."""
    tokenizer = train_tokenizer(corpus, scratch.vocab_size)
    config = scratch_config(scratch, tokenizer)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)  # type: ignore[no-untyped-call]
    return model, tokenizer


def scratch_config(scratch: ScratchModel, tokenizer: PreTrainedTokenizerBase | None = None) -> Any:
    """The Hugging Face config of a small transformer; without its tokenizer, of the largest vocabulary it may have."""
    return AutoConfig.for_model(scratch.architecture, **_shape(scratch, tokenizer))


def _shape(scratch: ScratchModel, tokenizer: PreTrainedTokenizerBase | None) -> dict[str, Any]:
    eos = None if tokenizer is None else tokenizer.eos_token_id
    shared = {
        "vocab_size": scratch.vocab_size if tokenizer is None else len(tokenizer),
        "initializer_range": scratch.initializer_range,
        "bos_token_id": eos,
        "eos_token_id": eos,
        "pad_token_id": eos,
        "tie_word_embeddings": True,
    }
    if scratch.architecture == "gpt2":
        return shared | {
            "n_embd": scratch.hidden_size,
            "n_layer": scratch.num_layers,
            "n_head": scratch.num_heads,
            "n_positions": scratch.context_length,
            "resid_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "attn_pdrop": 0.0,
        }
    return shared | {
        "hidden_size": scratch.hidden_size,
        # The gated MLP has three matrices; 8/3 of the width gives it the parameters of a 4x two-matrix MLP.
        "intermediate_size": 8 * scratch.hidden_size // 3,
        "num_hidden_layers": scratch.num_layers,
        "num_attention_heads": scratch.num_heads,
        "num_key_value_heads": scratch.num_heads,
        "head_dim": scratch.hidden_size // scratch.num_heads,
        "max_position_embeddings": scratch.context_length,
    }


def check_scratch(config: Any, tokenizer: PreTrainedTokenizerBase, scratch: ScratchModel) -> None:
    """Refuse a saved model (its Hugging Face config) that is not the one that `scratch` describes.

    Raises:
        ModelError: they differ; the message says where.
    """
    wanted = {"model_type": scratch.architecture, **_shape(scratch, tokenizer)}
    del wanted["initializer_range"]  # says how weights began, not what they are
    differing = [
        f"{name} is {getattr(config, name, None)}, not {value}"
        for name, value in wanted.items()
        if getattr(config, name, None) != value
    ]
    if differing:
        raise ModelError(
            f"The checkpoint holds another model than scratch.* describes ({'; '.join(differing)}), so these settings "
            "would have no effect. Give the settings of its training."
        )


def train_tokenizer(corpus: TokenizerCorpus, vocab_size: int) -> PreTrainedTokenizerFast:
    """A byte-pair tokenizer of at most `vocab_size` tokens whose merges stay inside the corpus's pieces.

    Raises:
        ModelError: the corpus holds a character outside its alphabet, which could not be decoded again; or the alphabet
            alone has more than `vocab_size` tokens.
    """
    there: set[str] = set().union(*corpus.texts)
    alphabet = set(corpus.alphabet) or there
    if stray := there - alphabet:
        raise ModelError(f"The tokenizer corpus holds {sorted(stray)}, which its alphabet does not list.")
    if vocab_size <= len(alphabet):
        raise ModelError(
            f"scratch.vocab_size={vocab_size} would have no effect: the alphabet of the tasks has {len(alphabet)} "
            f"characters, which with the end of sequence take {len(alphabet) + 1} tokens. Raise it to that or more."
        )
    tokenizer = Tokenizer(BPE())
    # The last alternative makes every character outside the pieces a pre-token of its own.
    tokenizer.pre_tokenizer = Split(Regex(rf"{corpus.pieces}|[\s\S]"), "isolated")
    tokenizer.decoder = Fuse()
    trainer = BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[EOS],
        initial_alphabet=sorted(alphabet),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus.texts, trainer)
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, eos_token=EOS, pad_token=EOS, clean_up_tokenization_spaces=False
    )


def add_lora(model: PreTrainedModel, rank: int, local: LocalBackend, seed: int) -> PreTrainedModel:
    """Wrap the model with LoRA adapters (float32, zero at the start) and freeze the rest.

    Raises:
        MissingDependencyError: peft is not installed.  ModelError: no module matches `local.lora_targets`.
    """
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise MissingDependencyError(f"lora_rank > 0 needs peft: {pip_install('torch')}.") from error
    named = local.lora_targets
    targets: str | list[str] = named if named == "all-linear" else [n.strip() for n in named.split(",")]
    config = LoraConfig(
        r=rank,
        lora_alpha=local.lora_alpha,
        target_modules=targets,
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM",
        fan_in_fan_out=any(isinstance(m, Conv1D) for m in model.modules()),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            with library_is_quiet():
                wrapped: Any = get_peft_model(model, config)
        except ValueError as error:
            raise ModelError(f"local.lora_targets={named}: {first_line(error)}") from error
    for parameter in wrapped.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    return wrapped  # type: ignore[no-any-return]


def save_weights(model: Any, trained: Mapping[str, torch.Tensor], path: Path) -> None:
    """Write the model into `path/model` as its library does, and what that leaves out of `trained` beside it.

    peft writes the adapters, each in a folder of its name, but not norms, biases or embeddings that are trained too.
    """
    model.save_pretrained(path / "model")
    if not _peft_saves_all(model, trained):
        save_file({name: tensor.detach().contiguous() for name, tensor in trained.items()}, path / TRAINED)


def load_weights(model: Any, trained: Mapping[str, torch.Tensor], path: Path) -> None:
    """Copy the weights that `save_weights` wrote into `path` into `model`, in place.

    Raises:
        OSError, KeyError, ValueError, RuntimeError: files are missing, damaged, or do not fit the model.
    """
    if (path / TRAINED).exists() or not _peft_saves_all(model, trained):
        saved = _read(path / TRAINED)
        _refuse_others(trained.keys() - saved.keys(), saved.keys() - trained.keys())
        shapes = {name for name, tensor in trained.items() if tensor.shape != saved[name].shape}
        if shapes:
            raise ValueError(f"weights of another shape: {sorted(shapes)[:3]}")
        with torch.no_grad():
            for name, tensor in trained.items():
                tensor.copy_(saved[name])
        return
    saved = {}
    for file in sorted((path / "model").glob("*.safetensors")):
        saved |= _read(file)
    if not saved:
        raise FileNotFoundError(f"no *.safetensors in {path / 'model'}")
    outcome: Any
    if hasattr(model, "peft_config"):
        from peft import set_peft_model_state_dict

        outcome = set_peft_model_state_dict(model, saved)
        missing = [n for n in outcome.missing_keys if n in trained]  # others are adapters that are not trained
    else:
        outcome = model.load_state_dict(saved, strict=False)
        # Tied weights are saved once.
        tied = {n for n, p in model.named_parameters(remove_duplicate=False)} - {n for n, _ in model.named_parameters()}
        missing = [n for n in outcome.missing_keys if n not in tied]
    _refuse_others(missing, outcome.unexpected_keys)


def _peft_saves_all(model: Any, trained: Mapping[str, torch.Tensor]) -> bool:
    """Whether the files of the model's library hold all that is trained, in the form that `load_weights` reads."""
    if not hasattr(model, "peft_config"):
        return True
    return all("default" in (parts := name.split(".")) and LORA_PARTS.intersection(parts) for name in trained)


def _read(file: Path) -> dict[str, torch.Tensor]:
    try:
        return load_file(file)
    except SafetensorError as error:
        raise ValueError(f"{file.name}: {error}") from error


def _refuse_others(missing: Iterable[str], unexpected: Iterable[str]) -> None:
    missing, unexpected = sorted(missing), sorted(unexpected)
    if missing or unexpected:
        raise ValueError(f"missing weights {missing[:3]}, unexpected weights {unexpected[:3]}")
