"""The Tinker backend: a LoRA policy that a server trains and samples, over the official SDK.

A policy version is sampled by a client of its own, made after the optimizer step that led to it: never by an older one.
What happens when the server loses something is in `trained`.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any

import tinker

from assay.backends.base import AdamParams, Backend, Capabilities, ForwardBackwardOutput, LossSpec, StepOutput
from assay.backends.config import PolicySpec
from assay.backends.seeds import SEEDS
from assay.backends.tinker import convert, record
from assay.backends.tinker.limits import capabilities, check_loss, check_temperature
from assay.backends.tinker.sampling import stream
from assay.backends.tinker.service import Service, context_of, grad_norm
from assay.backends.tinker.trained import Origin, Trained, gradient
from assay.config.urls import without_secrets
from assay.envs.base import EnvData
from assay.errors import CheckpointError, ConfigError, ModelError, NonFiniteGradientError, ServiceError, TrainingError
from assay.types import Completion, Datum, FloatArray, SamplingParams

AGAIN = "Run the same command again: it resumes from the last checkpoint."


class TinkerBackend(Backend):
    """See `assay.backends.base.Backend`. `open_backend` makes one; `close` ends its session."""

    def __init__(self, service: Service, policy: PolicySpec, can: Capabilities) -> None:
        self.capabilities = can
        self.tokenizer: Any = None
        self.context_length = 0
        self.vocab_size = 0
        self._policy = policy
        self._trained = Trained(service, policy)
        self._refused = ""
        """Why the gradient on the server must not be used; empty where it may."""
        self._sampler: tuple[tuple[int, int], tinker.SamplingClient] | None = None
        """With the version of its weights and its session."""
        self._reference: str | None = None
        self._reference_client: tuple[tuple[str, int], tinker.TrainingClient] | None = None
        """With the name of its weights and its session."""
        self._one_at_a_time = asyncio.Lock()

    @property
    def policy_version(self) -> int:  # type: ignore[override]
        """See `Backend`."""
        return self._trained.version

    async def start(self, saved: Path | None, *, weights_only: bool) -> None:
        """Open the policy: a new one, or what `save_state` wrote.

        Raises:
            ModelError: the server does not have the model, or not with this rank.
            CheckpointError: as `load_state`.
            ServiceError: the server cannot open it.
        """
        service = self._trained.service
        served = await service.check_model(self._policy.model_name)
        if saved is None:
            await self._trained.open(Origin("new", 0), 0)
        else:
            await self.load_state(saved, weights_only=weights_only)
        self.tokenizer = await self._trained.tokenizer()
        self.context_length = context_of(served, self._policy.tinker, self.tokenizer)
        self.vocab_size = len(self.tokenizer)

    # Sampling.

    async def sample_stream(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, seeds: Sequence[int]
    ) -> AsyncGenerator[tuple[int, Completion], None]:
        """See `Backend.sample_stream`. The samples of a prompt are one request where their seeds are such a request's.

        Raises:
            ModelError: a prompt is empty or leaves no room for a token.
            ServiceError: the server cannot sample, or answers something else than was asked for.
            TrainingError: it lost weights that cannot be restored.
        """
        rooms = [self._room(prompt) for prompt in prompts]
        version, left, tried = self.policy_version, set(range(len(prompts))), -1
        while left:
            session, used = self._trained.session, self._sampler
            try:
                sampler = await self._the_sampler(version)
                used = self._sampler
                asked = convert.Asked(prompts, params, rooms, seeds)
                async with aclosing(stream(self._trained.service, sampler, asked, left)) as parts:
                    async for answered in parts:
                        for place, sequence in answered:
                            done = convert.completion(sequence, params, rooms[place], version)
                            left.discard(place)
                            yield place, done
            except ServiceError as error:
                if self._sampler == used:  # and not one that another stream has made since
                    self._sampler = None
                if tried == session or not error.lost:
                    await self._trained.recover(error, session)
                tried = session  # the loss of a sample is not yet that of the model: another sampler comes first
        self._trained.went_well()

    def _room(self, prompt: Sequence[int]) -> int:
        room = self.context_length - len(prompt)
        if not prompt or room < 1:
            raise ModelError(
                f"A prompt has {len(prompt)} tokens, and the model takes 1 to {self.context_length - 1} before it can "
                "answer. Shorten it, or choose a model with a longer context."
            )
        return room

    async def _the_sampler(self, version: int) -> tinker.SamplingClient:
        """The sampler of the present weights, which must be those of `version`."""
        async with self._one_at_a_time:
            if version != self.policy_version:
                raise TrainingError(
                    f"The server lost the sampler of the policy after {version} optimizer steps, and the policy has "
                    f"taken further steps since. {AGAIN}"
                )
            wanted = (version, self._trained.session)
            if self._sampler is None or self._sampler[0] != wanted:
                made = await self._trained.ask(
                    lambda client: client.save_weights_and_get_sampling_client(),
                    "weights for a sampler",
                    settles=False,
                )
                self._sampler = ((version, self._trained.session), made)
            return self._sampler[1]

    # Training.

    async def forward_backward(self, data: Sequence[Datum], loss: LossSpec) -> ForwardBackwardOutput:
        """See `Backend.forward_backward`.

        Raises:
            ConfigError: the loss is not one that a server can compute.
            ServiceError: the server refuses.
            TrainingError: optimizer steps would be lost; or a loss of the caller's own returned NaN.
        """
        check_loss(loss)
        await self._drop_refused()
        output = await self._trained.ask(lambda client: gradient(client, data, loss), "forward_backward")
        self._trained.accumulated(data, loss)
        return self._looked_at(output, data)

    async def optim_step(self, params: AdamParams) -> Mapping[str, float]:
        """See `Backend.optim_step`; `grad_norm` is there where the server reports it.

        Raises:
            NonFiniteGradientError: a loss or a log-probability was not finite; no step was asked for.
            ServiceError, TrainingError: as `forward_backward`.
        """
        if self._refused:
            raise NonFiniteGradientError(self._refused)
        done = await self._trained.ask(lambda client: client.optim_step(convert.adam_params(params)), "optim_step")
        return self._stepped(done)

    async def train_step(self, data: Sequence[Datum], loss: LossSpec, params: AdamParams) -> StepOutput:
        """See `Backend.train_step`: both requests are on their way before either is answered.

        Raises:
            TrainingError: also where the loss was not finite, since the step was taken.
        """
        check_loss(loss)
        await self._drop_refused()

        def submit(client: tinker.TrainingClient) -> Any:
            first = gradient(client, data, loss)
            return _both(first, client.optim_step(convert.adam_params(params)))

        output, done = await self._trained.ask(submit, "forward_backward and optim_step")
        found, metrics = self._looked_at(output, data), self._stepped(done)
        if self._refused:
            raise TrainingError(
                f"{self._refused} The optimizer step was on its way already, so the weights on the server are spoiled. "
                f"{AGAIN}"
            )
        return StepOutput(found, metrics)

    async def discard_gradient(self) -> None:
        """See `Backend.discard_gradient`. The API has no such verb: the model is left behind with its gradient, and the
        next request restores it from the last state, where no optimizer step would be lost."""
        self._trained.abandon()
        self._refused = ""

    async def _drop_refused(self) -> None:
        if self._refused:
            await self.discard_gradient()

    def _looked_at(self, output: Any, data: Sequence[Datum]) -> ForwardBackwardOutput:
        """What the server computed; a loss that is not finite forbids the step."""
        found = convert.target_logprobs(output.loss_fn_outputs, data)
        total = output.metrics.get("loss:sum")
        if total is None:
            raise ModelError(
                "The server does not report loss:sum, so nobody could tell how a run goes. `assay doctor --tinker URL` "
                "says what else it lacks."
            )
        if not (math.isfinite(total) and all(math.isfinite(float(x.sum())) for x in found)):
            self._refused = (
                f"The loss is {total:g} after {self.policy_version} optimizer steps, or a log-probability is not "
                "finite: a step would destroy the weights. Lower the learning rate or look at the rewards."
            )
        return ForwardBackwardOutput(found, {"loss:sum": total, "kl:sum": output.metrics.get("kl:sum", 0.0)})

    def _stepped(self, done: tinker.OptimStepResponse) -> Mapping[str, float]:
        self._trained.stepped()
        found = grad_norm(done.metrics)
        if not math.isfinite(found.get("grad_norm", 0.0)):
            raise TrainingError(
                f"The server took optimizer step {self.policy_version} on a gradient of norm {found['grad_norm']}, so "
                f"its weights are spoiled. {AGAIN}"
            )
        return found

    # Log-probabilities.

    async def logprobs(
        self, data: Sequence[Datum], *, temperature: float = 1.0, reference: bool = False
    ) -> list[FloatArray]:
        """See `Backend.logprobs`. Each comes from a trainer, which takes all sequences in one request.

        Raises:
            ConfigError: a temperature other than 1.
            ServiceError, TrainingError: as `forward_backward`; or there is no reference.
        """
        check_temperature(temperature)
        if not data:
            return []
        if reference:
            return await self._reference_logprobs(data)
        output = await self._trained.ask(partial(_forward, data), "forward")
        return convert.target_logprobs(output.loss_fn_outputs, data)

    async def _reference_logprobs(self, data: Sequence[Datum]) -> list[FloatArray]:
        tried = -1
        while True:
            session = self._trained.session
            try:
                client = await self._the_reference()
                wait_s = self._policy.tinker.train_timeout_s
                output = await self._trained.service.wait(_forward(data, client), "forward of the reference", wait_s)
            except ServiceError as error:
                self._reference_client = None
                if tried == session or not error.lost:
                    await self._trained.recover(error, session)
                tried = session
            except BaseException:  # cancelled: the server may wait for ever for what was not sent
                self._reference_client = None
                raise
            else:
                return convert.target_logprobs(output.loss_fn_outputs, data)

    async def _the_reference(self) -> tinker.TrainingClient:
        """A model of its own that is never trained."""
        name = self._reference
        if name is None:
            raise TrainingError(
                "There is no reference policy: call freeze_reference() before asking for its log-probs."
            )
        wanted = (name, self._trained.session)
        if self._reference_client is None or self._reference_client[0] != wanted:
            service, policy = self._trained.service, self._policy
            if name == record.BASE:  # new adapters change nothing
                made = await service.create(policy.model_name, policy.lora_rank, policy.seed % SEEDS)
            else:
                made = await service.restore(name, policy.lora_rank, optimizer=False)
            self._reference_client = (wanted, made)
        return self._reference_client[1]

    async def freeze_reference(self) -> None:
        """See `Backend.freeze_reference`. New adapters do nothing yet, so the reference is then the base model."""
        new = self._trained.origin.kind == "new" and self.policy_version == 0
        self._reference = record.BASE if new else await self._save_weights()

    async def refresh_reference(self, mix: float) -> None:
        """See `Backend.refresh_reference`.

        Raises:
            ConfigError: `mix` is not 1.
        """
        if mix != 1:
            raise ConfigError(f"grpo.ref_refresh_mix={mix}: adapters on a server cannot be mixed. Set it to 1.")
        self._reference = await self._save_weights()

    # State.

    async def save_state(self, path: Path) -> None:
        """See `Backend.save_state`. The folder gets the names under which the server keeps weights and optimizer."""
        state = await self._save_weights()
        saved = record.Saved(
            server=without_secrets(self._trained.service.url),
            model=self._policy.model_name,
            lora_rank=self._policy.lora_rank,
            policy_version=self.policy_version,
            state=state,
            sampler=await self._save_sampler(),
            reference=self._reference,
        )
        saved.write(path)
        self._trained.saved(state)

    async def load_state(self, path: Path, *, weights_only: bool = False) -> None:
        """See `Backend.load_state`. The server makes a new model from what it saved.

        Raises:
            CheckpointError: the folder names another policy, or the server does not have it any more.
        """
        saved = record.read(path)
        server = without_secrets(self._trained.service.url)
        saved.check(server, self._policy.model_name, self._policy.lora_rank, path)
        origin = Origin(
            "weights" if weights_only else "state", 0 if weights_only else saved.policy_version, saved.state
        )
        self._refused = ""
        try:
            await self._trained.open(origin, self.policy_version if weights_only else saved.policy_version)
        except ServiceError as error:
            raise CheckpointError(
                f"{path} names a state that the server does not give back. {error} Choose another checkpoint."
            ) from error
        self._sampler = None
        if not weights_only:
            self._reference = saved.reference

    async def close(self) -> None:
        """End the session on the server; safe to call twice."""
        await self._trained.service.close()

    async def _save_weights(self) -> str:
        """Keep the present weights and optimizer on the server; returns their name."""
        name, ttl = self._fresh_name(), self._policy.tinker.checkpoint_ttl_s
        found = await self._trained.ask(lambda client: client.save_state(name, ttl_seconds=ttl), "save_state")
        return str(found.path)

    async def _save_sampler(self) -> str:
        """Keep the present weights on the server for a sampler; returns their name."""
        name, ttl = self._fresh_name(), self._policy.tinker.checkpoint_ttl_s
        found = await self._trained.ask(
            lambda client: client.save_weights_for_sampler(name, ttl_seconds=ttl), "save_weights_for_sampler"
        )
        return str(found.path)

    def _fresh_name(self) -> str:
        return f"assay-{self.policy_version:06d}-{secrets.token_hex(4)}"


def _forward(data: Sequence[Datum], client: tinker.TrainingClient) -> Any:
    """Ask for the log-probabilities of every target."""
    return client.forward(convert.supervised(data, [datum.mask for datum in data]), "cross_entropy")


async def _both(first: Any, second: Any) -> tuple[Any, Any]:
    return await first, await second


async def open_backend(policy: PolicySpec, data: EnvData, resume: Path | None) -> TinkerBackend:
    """The policy of a run (`backend=tinker`); see `backends.named.Opener`.

    Raises:
        ConfigError: no API key, or a URL that cannot be used.
        ModelError: the server does not have the model or the rank, or would train wrongly.
        CheckpointError: the saved policy is another server's or model's, or gone.
        ServiceError: the server does not answer, or refuses.
    """
    from assay.backends.tinker.probe.vouch import vouched

    service = await Service.connect(policy.base_url, policy.tinker)
    try:
        backend = TinkerBackend(service, policy, capabilities(**await vouched(service, policy)))
        await backend.start(resume or policy.start, weights_only=resume is None)
    except BaseException:
        await service.close()
        raise
    return backend
