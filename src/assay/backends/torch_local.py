"""The local backend: a Hugging Face causal LM, trained and sampled in this process.

All computation runs on one worker thread, so the event loop stays free for environments while the model works, and
operations happen in the order they were asked for. The model is always in eval mode: dropout would make the trained
distribution differ from the sampled one. No global random state is used after the weights exist (sampling is counter
based), so weights, optimizer and `policy_version` are the whole state.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from assay.backends import forward, hardware, models
from assay.backends.base import LOSS_NAMES, AdamParams, Capabilities, ForwardBackwardOutput, LossSpec
from assay.backends.config import LocalBackend, ScratchModel, loss_settings
from assay.backends.decoder import Decoder
from assay.backends.half import HalfCopies
from assay.backends.losses import token_loss
from assay.backends.module import Module
from assay.backends.optimizer import adamw, load_adamw
from assay.backends.sampler import decode, sample
from assay.backends.steppers import FusedStepper, ModuleStepper, Stepper
from assay.envs.base import TokenizerCorpus
from assay.errors import CheckpointError, ModelError, TrainingError
from assay.types import Completion, Datum, FloatArray, SamplingParams

T = TypeVar("T")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class TorchBackend:
    """See `assay.backends.base.Backend`. Build one with `create`, or from parts that exist already."""

    capabilities = Capabilities(losses=frozenset(LOSS_NAMES), lora=True, full_weights=True, exact_resume=True)

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, local: LocalBackend) -> None:
        hardware.prepare_process(local)
        self.device = _device(local.device)
        self.tokenizer: Any = tokenizer
        self.policy_version = 0
        self._local = local
        self._model: Any = model.to(self.device).eval()  # type: ignore[arg-type]
        self._half = local.dtype == "bfloat16"
        self._source = hardware.runner(self._model, local, self.device)
        self._static = hardware.static_decode(self._source, self._head, model.config, local, self.device)
        self._half_copies: HalfCopies | None = None
        self.context_length = models.context_length(model)
        self._trained = {n: p for n, p in self._model.named_parameters() if p.requires_grad}
        self._optimizer = adamw(self._trained.values(), local.adamw)
        self._reference: dict[str, Tensor] | None = None
        threads = local.torch_threads
        self._worker = ThreadPoolExecutor(1, "torch", initializer=torch.set_num_threads, initargs=(threads,))

    @classmethod
    def create(
        cls,
        model_name: str,
        lora_rank: int,
        local: LocalBackend,
        scratch: ScratchModel,
        corpus: TokenizerCorpus | None,
        seed: int,
    ) -> TorchBackend:
        """A backend from config. `corpus` trains the tokenizer of a scratch model.

        Raises:
            ModelError: the model cannot be loaded or built.  MissingDependencyError: LoRA without peft.
        """
        # Weights that are trained stay float32; a frozen base may be half precision.
        dtype = DTYPES[local.dtype] if lora_rank else torch.float32
        if model_name == "scratch":
            if corpus is None:
                raise ModelError(
                    "model_name=scratch needs an environment with a closed grammar to train a tokenizer on."
                )
            model, tokenizer = models.build_scratch(scratch, corpus, seed)
        else:
            model, tokenizer = models.load_pretrained(model_name, dtype)
        if lora_rank:
            model = models.add_lora(model, lora_rank, local, seed)
        return cls(model, tokenizer, local)

    def check_scratch(self, scratch: ScratchModel) -> None:
        """Refuse a loaded model that is not the one that `scratch` describes.

        Raises:
            ModelError: it is not.
        """
        models.check_scratch(self._model.config, self.tokenizer, scratch)

    async def sample(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, seeds: Sequence[int]
    ) -> list[Completion]:
        """See `Backend.sample`."""
        return await self._run(lambda: self._sample(prompts, params, seeds))

    async def forward_backward(self, data: Sequence[Datum], loss: LossSpec) -> ForwardBackwardOutput:
        """See `Backend.forward_backward`."""
        return await self._run(lambda: self._forward_backward(data, loss))

    async def optim_step(self, params: AdamParams) -> Mapping[str, float]:
        """See `Backend.optim_step`. A non-finite gradient raises and changes nothing."""
        return await self._run(lambda: self._optim_step(params))

    async def logprobs(
        self, data: Sequence[Datum], *, temperature: float = 1.0, reference: bool = False
    ) -> list[FloatArray]:
        """See `Backend.logprobs`."""
        return await self._run(lambda: self._logprobs(data, temperature, reference))

    async def freeze_reference(self) -> None:
        """See `Backend.freeze_reference`."""
        self._reference = {n: p.detach().clone() for n, p in self._trained.items()}

    async def save_state(self, path: Path) -> None:
        """See `Backend.save_state`. `path/model` is a folder that `from_pretrained` (or peft) loads."""
        await self._run(lambda: self._save(path))

    async def load_state(self, path: Path, *, weights_only: bool = False) -> None:
        """See `Backend.load_state`.

        Raises:
            CheckpointError: the folder is not a checkpoint of this model.
        """
        await self._run(lambda: self._load(path, weights_only))

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._worker, work)

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        return torch.autocast(self.device.type, torch.bfloat16) if self._half else contextlib.nullcontext()

    def _head(self, states: Tensor) -> Tensor:
        """Logits [*, V] of what the head is given; by default at the precision of its weights, also under autocast."""
        if self._local.head_dtype == "bfloat16":
            return self._source.head(states)
        with torch.autocast(self.device.type, enabled=False):
            return self._source.head(states.to(self._model.get_output_embeddings().weight.dtype))

    def _stepper(self) -> Stepper:
        if isinstance(self._source, Decoder):
            return FusedStepper(self._source, self._head)
        return ModuleStepper(self._source, self._head, self.context_length)

    def _sample(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, seeds: Sequence[int]
    ) -> list[Completion]:
        with self._sampling():
            return sample(
                self._static or partial(decode, self._stepper, self.device),
                prompts,
                seeds,
                params,
                context_length=self.context_length,
                batch_tokens=self._local.sample_batch_tokens,
                policy_version=self.policy_version,
            )

    @contextlib.contextmanager
    def _sampling(self) -> Iterator[None]:
        """The precision of sampling. Captured steps have weights of their own, so nothing is cast and kept for them."""
        if self._static is None or not self._half:
            with self._autocast():
                yield
            return
        if self._half_copies is None:
            self._half_copies = hardware.half_copies(self._model, self._local)
        with self._half_copies.in_place(), torch.autocast(self.device.type, torch.bfloat16, cache_enabled=False):
            yield

    def _micro_batches(self, data: Sequence[Datum]) -> Iterator[forward.Packed]:
        trained = [i for i, d in enumerate(data) if d.mask.any()]
        chosen = [data[i] for i in trained]
        longest = max((len(d) for d in chosen), default=0)
        if longest > self.context_length:
            raise ModelError(
                f"A training sequence has {longest} tokens and the model's context is {self.context_length}, so its "
                "end cannot be trained. Use a model with a longer context (scratch.context_length) or shorter examples."
            )
        budget, fused = self._local.micro_batch_tokens, isinstance(self._source, Decoder)
        if isinstance(self._source, Module) and not self._source.separate:
            budget = 1  # the module makes logits itself, so it gets one sequence at a time
        for groups in forward.plan(chosen, budget, share=fused):
            packed = forward.pack(chosen, groups)
            yield forward.relabel(packed, trained)

    def _targets(self, packed: forward.Packed, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        with self._autocast():
            states = forward.states(self._source, packed, self.device)
            return forward.target_logprobs(states, targets, self._head, temperature, self._model.config.vocab_size)

    def _forward_backward(self, data: Sequence[Datum], loss: LossSpec) -> ForwardBackwardOutput:
        loss_settings(loss)
        logprobs = [np.zeros(len(d), np.float32) for d in data]
        total, entropy, count = 0.0, 0.0, 0
        for packed in self._micro_batches(data):
            targets, behaviour, advantages = forward.streams(data, packed, self.device)
            now, entropies = self._targets(packed, targets, loss.temperature)
            summed = token_loss(loss, now, behaviour, advantages).sum()
            summed.backward()  # type: ignore[no-untyped-call]
            total, entropy, count = total + summed.item(), entropy + entropies.sum().item(), count + len(targets)
            forward.scatter(packed, now, logprobs)
        return ForwardBackwardOutput(logprobs, {"loss:sum": total, "entropy:mean": entropy / max(1, count)})

    @torch.no_grad()
    def _logprobs(self, data: Sequence[Datum], temperature: float, reference: bool) -> list[FloatArray]:
        logprobs = [np.zeros(len(d), np.float32) for d in data]
        with self._as_reference() if reference else contextlib.nullcontext():
            for packed in self._micro_batches(data):
                targets, _, _ = forward.streams(data, packed, self.device)
                forward.scatter(packed, self._targets(packed, targets, temperature)[0], logprobs)
        return logprobs

    @contextlib.contextmanager
    def _as_reference(self) -> Iterator[None]:
        """Swap the reference weights in for the duration; the policy's tensors come back untouched."""
        if self._reference is None:
            raise TrainingError(
                "There is no reference policy: call freeze_reference() before asking for its log-probs."
            )
        policy = {n: p.data for n, p in self._trained.items()}
        try:
            for name, parameter in self._trained.items():
                parameter.data = self._reference[name]
            yield
        finally:
            for name, parameter in self._trained.items():
                parameter.data = policy[name]

    def _optim_step(self, params: AdamParams) -> Mapping[str, float]:
        gradients = [p for p in self._trained.values() if p.grad is not None]
        norm = torch.nn.utils.get_total_norm([p.grad for p in gradients if p.grad is not None])
        if not torch.isfinite(norm):
            self._optimizer.zero_grad(set_to_none=True)
            raise TrainingError(
                f"The gradient norm is {float(norm)} at optimizer step {self.policy_version + 1}, so a step would "
                "destroy the weights; they were left as they are. Lower the learning rate or look at the rewards."
            )
        if params.grad_clip_norm:
            torch.nn.utils.clip_grads_with_norm_(gradients, params.grad_clip_norm, norm)
        for group in self._optimizer.param_groups:
            group["lr"], group["betas"], group["eps"] = params.learning_rate, (params.beta1, params.beta2), params.eps
            group["weight_decay"] = params.weight_decay if group["decayed"] else 0.0
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self.policy_version += 1
        return {"grad_norm": float(norm)}

    def _save(self, path: Path) -> None:
        path.mkdir(parents=True)
        self._model.save_pretrained(path / "model")
        self.tokenizer.save_pretrained(path / "model")
        _save_tensors(self._optimizer.state_dict(), path / "optimizer.pt")
        if self._reference is not None:
            save_file(self._reference, path / "reference.safetensors")
        (path / "backend.json").write_text(json.dumps({"policy_version": self.policy_version}))

    def _load(self, path: Path, weights_only: bool) -> None:
        try:
            models.load_weights(self._model, path / "model")
            if weights_only:
                return
            load_adamw(self._optimizer, torch.load(path / "optimizer.pt", map_location=self.device, weights_only=True))
            if (path / "reference.safetensors").exists():
                self._reference = load_file(path / "reference.safetensors", device=str(self.device))
            self.policy_version = int(json.loads((path / "backend.json").read_text())["policy_version"])
        except (OSError, KeyError, ValueError, RuntimeError) as error:
            raise CheckpointError(
                f"{path} does not fit this model ({str(error).splitlines()[0]}). Load it with the settings it was "
                "written with, or choose another checkpoint."
            ) from error


def _save_tensors(state: Any, path: Path) -> None:
    with open(path, "wb") as file:
        try:
            torch.save(state, file)
        except RuntimeError as error:
            # torch covers what the file said (a full disk, say) with a complaint about its own position.
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            raise


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ModelError(
            f"local.device={name} cannot be used: {str(error).splitlines()[0]} Use auto or cpu."
        ) from error
    return device
