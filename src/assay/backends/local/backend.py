"""The local backend: a Hugging Face causal LM, trained and sampled in this process.

All computation runs on one worker thread, so the event loop stays free for environments while the model works, and
operations run in the order of their calls. Sampling asks for one batch at a time and yields what has ended every few
steps; weights cannot change while a stream is open. Every pass runs in eval mode: dropout would make the trained
distribution differ from the sampled one. No global random state is used after the weights exist (sampling is counter
based), so weights, optimizer and `policy_version` are the whole state.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from assay.backends.base import (
    LOSS_TERMS,
    AdamParams,
    Backend,
    Capabilities,
    ForwardBackwardOutput,
    LossSpec,
)
from assay.backends.config import LocalBackend, PolicySpec, ScratchModel
from assay.backends.local import hardware, models
from assay.backends.local.gradient import accumulate, logprobs_of
from assay.backends.local.losses import SURROGATES
from assay.backends.local.network import Network
from assay.backends.local.optimizer import adamw, check_still_trained, load_adamw, save_adamw, take_step
from assay.backends.local.reference import BelowAdapters, FrozenWeights, OwnModel, Reference, adapters_own, of_start
from assay.backends.local.sampling.decoding import Decoding
from assay.backends.local.sampling.sampler import Finished, Request, batches_of, sample
from assay.backends.local.worker import Worker
from assay.envs.base import EnvData, TokenizerCorpus
from assay.errors import CheckpointError, ModelError, TrainingError, first_line
from assay.types import Completion, Datum, FloatArray, Json, SamplingParams

REFERENCE = "reference.safetensors"
BELOW = "below_adapters"
"""What a checkpoint says of a reference that needs no weights of its own."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class TorchBackend(Backend):
    """See `assay.backends.base.Backend`. Build one with `create`, or from parts that exist already."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None,
        local: LocalBackend,
        reference: PreTrainedModel | Literal["start"] | None = None,
    ) -> None:
        """Train `model` in place.

        Args:
            tokenizer: saved with checkpoints; None where the caller keeps it.
            reference: the reference policy: a model of its own, or the policy at the `start` (see `of_start`).
                `freeze_reference` makes a copy of the weights later.

        Raises:
            ModelError: the device cannot be used, or `reference` has another vocabulary.
        """
        hardware.prepare_process(local)
        self.device = device_of(local.device)
        self.capabilities = Capabilities(
            losses=frozenset(SURROGATES),
            terms=frozenset(LOSS_TERMS),
            lora=True,
            full_weights=True,
            exact_resume=True,
            batch_invariant=False,
            cohort_tokens=local.cohort_tokens,
            own_losses=True,
            precision=hardware.precision(model, local, self.device),
        )
        self.tokenizer: Any = tokenizer
        self.policy_version = 0
        self._local = local
        self._policy = Network.of(model, local, self.device)
        self._model = self._policy.model
        self._decoding = Decoding(self._policy)
        self.context_length = self._policy.context_length
        self.vocab_size = self._policy.vocab_size
        self._trained = {n: p for n, p in self._model.named_parameters() if p.requires_grad}
        self._optimizer = adamw(self._trained.values(), local.adamw)
        self._reference = self._first_reference = self._make_reference(reference)
        self._worker = Worker(local.torch_threads)
        self._streams = 0
        """Streams of samples that are open."""

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

    async def sample_stream(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, seeds: Sequence[int]
    ) -> AsyncGenerator[tuple[int, Completion], None]:
        """See `Backend.sample_stream`. Streams that are open side by side take turns, batch by batch.

        Raises:
            ModelError: a prompt is empty or leaves no room for a token, or the model gives no finite probabilities.
        """
        batches = batches_of(
            prompts,
            seeds,
            params.max_tokens,
            context_length=self.context_length,
            batch_tokens=self._local.sample_batch_tokens,
        )
        self._streams += 1
        try:
            for batch in batches:
                parts = self._worker.iterate(functools.partial(self._sample, batch, params))
                async with contextlib.aclosing(parts):
                    async for finished in parts:
                        for completion in finished:
                            yield completion
        finally:
            self._streams -= 1

    async def forward_backward(self, data: Sequence[Datum], loss: LossSpec) -> ForwardBackwardOutput:
        """See `Backend.forward_backward`. An error leaves no gradient, not even one of earlier calls.

        Raises:
            ConfigError: the loss is not valid.
            TrainingError: a loss of the caller's own returned NaN for finite numbers.
        """
        return await self._worker.run(lambda: self._forward_backward(data, loss))

    async def optim_step(self, params: AdamParams) -> Mapping[str, float]:
        """See `Backend.optim_step`. A non-finite gradient raises and changes nothing."""
        self._refuse_while_sampling("optim_step")
        return await self._worker.run(lambda: self._optim_step(params))

    async def discard_gradient(self) -> None:
        """See `Backend.discard_gradient`."""
        await self._worker.run(self._optimizer.zero_grad)

    async def logprobs(
        self, data: Sequence[Datum], *, temperature: float = 1.0, reference: bool = False
    ) -> list[FloatArray]:
        """See `Backend.logprobs`."""
        return await self._worker.run(lambda: self._logprobs(data, temperature, reference))

    async def freeze_reference(self) -> None:
        """See `Backend.freeze_reference`."""
        self._reference = FrozenWeights(self._policy, self._trained)

    async def refresh_reference(self, mix: float) -> None:
        """See `Backend.refresh_reference`. A reference model of its own is changed in place.

        Raises:
            ModelError: the reference has other weights than the policy, so that they cannot be mixed.
        """
        reference = self._the_reference()
        self._reference = await self._worker.run(lambda: reference.refresh(mix))

    def check_refresh(self, mix: float) -> None:
        """Refuse, before training, a refresh of the reference that is not possible.

        Raises:
            ModelError: as `refresh_reference`.
        """
        self._the_reference().check_refresh(mix)

    async def save_state(self, path: Path) -> None:
        """See `Backend.save_state`. `path/model` is a folder that `from_pretrained` (or peft) loads."""
        await self._worker.run(lambda: self._save(path))

    async def load_state(self, path: Path, *, weights_only: bool = False) -> None:
        """See `Backend.load_state`.

        Raises:
            CheckpointError: the folder is not a checkpoint of this model.
        """
        self._refuse_while_sampling("load_state")
        await self._worker.run(lambda: self._load(path, weights_only))

    def _refuse_while_sampling(self, what: str) -> None:
        if self._streams:
            raise TrainingError(
                f"{what} was called while {self._streams} streams of samples are open: completions of one call would "
                "come from different weights. Read the streams to their end or close them first."
            )

    def _sample(self, batch: Sequence[Request], params: SamplingParams) -> Generator[Finished, None, None]:
        with self._policy.evaluating(), self._decoding.ready() as decode:
            yield from sample(
                decode, batch, params, context_length=self.context_length, policy_version=self.policy_version
            )

    def _forward_backward(self, data: Sequence[Datum], loss: LossSpec) -> ForwardBackwardOutput:
        try:
            check_still_trained(self._trained)
            with self._policy.evaluating():
                return accumulate(self._policy, data, loss)
        except BaseException:
            self._optimizer.zero_grad(set_to_none=True)
            raise

    @torch.no_grad()
    def _logprobs(self, data: Sequence[Datum], temperature: float, reference: bool) -> list[FloatArray]:
        chosen = self._the_reference().network() if reference else contextlib.nullcontext(self._policy)
        with chosen as network, network.evaluating():
            return logprobs_of(network, data, temperature)

    def _make_reference(self, wanted: PreTrainedModel | Literal["start"] | None) -> Reference | None:
        if wanted is None:
            return None
        if wanted == "start":
            return of_start(self._policy, self._trained)
        return OwnModel(Network.of(wanted, self._local, self.device), self._policy)

    def _the_reference(self) -> Reference:
        if self._reference is None:
            raise TrainingError(
                "There is no reference policy: call freeze_reference() before asking for its log-probs."
            )
        return self._reference

    def _optim_step(self, params: AdamParams) -> Mapping[str, float]:
        norm = take_step(self._optimizer, self._trained.values(), params, self.policy_version + 1)
        self.policy_version += 1
        return {"grad_norm": norm}

    def _save(self, path: Path) -> None:
        path.mkdir(parents=True)
        models.save_weights(self._model, self._trained, path)
        if self.tokenizer is not None:
            self.tokenizer.save_pretrained(path / "model")
        save_adamw(self._optimizer, path / "optimizer.pt")
        weights = self._reference.weights() if self._reference is not None else None
        if weights is not None:
            save_file({name: tensor.detach().contiguous() for name, tensor in weights.items()}, path / REFERENCE)
        record: dict[str, Json] = {"policy_version": self.policy_version}
        if isinstance(self._reference, BelowAdapters):
            record["reference"] = BELOW
        (path / "backend.json").write_text(json.dumps(record))

    def _load(self, path: Path, weights_only: bool) -> None:
        try:
            models.load_weights(self._model, self._trained, path)
            if weights_only:
                return
            load_adamw(self._optimizer, torch.load(path / "optimizer.pt", map_location=self.device, weights_only=True))
            record = json.loads((path / "backend.json").read_text())
            self._load_reference(path, record.get("reference"))
            self.policy_version = int(record["policy_version"])
        except (OSError, KeyError, ValueError, RuntimeError) as error:
            raise CheckpointError(
                f"{path} does not fit this model ({first_line(error)}). Load it with the settings it was "
                "written with, or choose another checkpoint."
            ) from error

    def _load_reference(self, path: Path, kind: Json) -> None:
        saved = (path / REFERENCE).exists()
        weights = load_file(path / REFERENCE, device=str(self.device)) if saved else None
        if isinstance(self._reference, OwnModel):
            self._reference.load(weights)
        elif weights is not None:
            self._reference = FrozenWeights(self._policy, self._trained, weights)
        elif kind == BELOW:
            if not adapters_own(self._model, self._trained):
                raise ValueError("its reference is the base below LoRA adapters, and this model trains other weights")
            self._reference = BelowAdapters(self._policy, self._trained)
        else:
            self._reference = self._first_reference


async def open_backend(policy: PolicySpec, data: EnvData, resume: Path | None) -> TorchBackend:
    """The policy of a run (`backend=local`); see `backends.named.Opener`.

    Raises:
        ModelError, MissingDependencyError: as `TorchBackend.create`; or the saved model is not the one of `scratch`.
        CheckpointError: the saved policy is one of another model.
    """
    saved = resume or policy.start
    scratch = policy.model_name == "scratch"
    # A scratch model's tokenizer was made by the run that made the weights, so both come from the checkpoint.
    name = str(saved / "model") if scratch and saved is not None else policy.model_name
    backend = TorchBackend.create(
        name, policy.lora_rank, policy.local, policy.scratch, data.tokenizer_corpus, policy.seed
    )
    if scratch and saved is not None:
        backend.check_scratch(policy.scratch)
    if saved is not None:
        await backend.load_state(saved, weights_only=resume is None)
    return backend


def device_of(name: str) -> torch.device:
    """The device that a setting names.

    Raises:
        ModelError: it cannot be used.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ModelError(f"local.device={name} cannot be used: {first_line(error)} Use auto or cpu.") from error
    return device
