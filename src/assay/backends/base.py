"""The only seam between Assay and a model: sample, forward_backward, optim_step, logprobs, save and load.

Semantics follow the Tinker API (a loss is a sum over tokens with no normalisation of its own), so that the same data
train a local PyTorch model and a hosted one. Imports no torch.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

from assay.errors import ModelError, NonFiniteGradientError
from assay.types import Completion, Datum, FloatArray, SamplingParams

Surrogate = Callable[..., Any]
"""A loss function of your own: `(logprobs, behaviour, advantages, sequences, **thresholds) -> Tensor`, all [N] for N
trained tokens. `logprobs` are the learner's, with gradient; `behaviour` those of the policy that sampled, moved to
within `LOG_RATIO_LIMIT` of the learner's; `sequences` numbers the sequence of each token. It returns the loss of each
token; their sum is minimised."""
KLEstimator = Literal["k1", "k2", "k3", "abs"]
LossTerm = Literal["policy", "kl", "entropy"]
LOSS_TERMS: tuple[LossTerm, ...] = get_args(LossTerm)
Precision = Literal["float32", "tf32", "bfloat16", "other"]
"""What explains small differences between sampler and trainer: rounding; or (`other`) that they are two
implementations, or a mixture of experts in half precision, where rounding lets a router choose another expert."""


LOG_RATIO_LIMIT = 20.0
"""Nats by which two policies may differ on a token. What is further apart counts as this far, with a gradient of 0
through the ratio: its exponential would be infinite, and one token would spoil the whole gradient. A ratio of e^20
(5e8) is a fault of the data, not of the policy."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend can do. Settings that ask for more are refused before anything is sampled."""

    losses: frozenset[str]
    """Surrogates that it computes by name."""
    terms: frozenset[str]
    """Terms that can be added to a loss."""
    lora: bool
    full_weights: bool
    exact_resume: bool
    batch_invariant: bool
    """Whether a completion has the same bits whatever is asked for beside it, or that cannot be decided by who asks.
    Rollouts then hand their prompts over as they come; otherwise they are sampled in fixed cohorts, so that the run
    decides what is computed together."""
    cohort_tokens: int = 0
    """Completion tokens that a cohort may sample in a turn, where the backend is not batch invariant; 0 makes one
    cohort of all rollouts."""
    own_losses: bool = False
    """Whether it can compute a surrogate that is given as a function."""
    max_lora_rank: int | None = None
    """Largest LoRA rank; None where any fits."""
    tempered: bool = True
    """Whether it computes log-probabilities under a sampling temperature other than 1."""
    precision: Precision = "other"
    """In which sampler and trainer compute, the coarser of the two. It decides how far they may disagree."""


@dataclass(frozen=True, slots=True)
class KLTerm:
    """A KL penalty inside the loss: `coef * estimator` per token, or in its unbiased form (`backends.local.losses`)."""

    coef: float
    estimator: KLEstimator
    unbiased: bool = False


@dataclass(frozen=True, slots=True)
class LossSpec:
    """A surrogate (by its Tinker name, or a function) with all its thresholds, and the terms added to it.

    `config` is Tinker's `loss_fn_config`, whose thresholds are absolute ratios. `temperature` divides the logits, so
    that trained log-probabilities are those of the distribution that was sampled. `kl` (against `Datum.ref_logprobs`)
    and `entropy_coef` (a bonus) are weighted by `Datum.weights`.
    """

    surrogate: str | Surrogate
    temperature: float = 1.0
    config: Mapping[str, float] = field(default_factory=dict)
    kl: KLTerm | None = None
    entropy_coef: float = 0.0

    @property
    def name(self) -> str:
        """The surrogate's name."""
        return surrogate_name(self.surrogate)


def surrogate_name(surrogate: str | Surrogate) -> str:
    """A surrogate's name, for messages and metrics."""
    return surrogate if isinstance(surrogate, str) else getattr(surrogate, "__qualname__", type(surrogate).__name__)


@dataclass(frozen=True, slots=True)
class AdamParams:
    """One AdamW step: decoupled weight decay; `grad_clip_norm` 0 turns clipping off."""

    learning_rate: float
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.0
    grad_clip_norm: float = 1.0


@dataclass(frozen=True, slots=True)
class ForwardBackwardOutput:
    """`logprobs[i]` has the shape of `data[i].targets`: the policy's log-probability of each (0 where masked).

    `metrics` has `loss:sum`, `kl:sum`, and `entropy:mean` where the backend knows whole distributions.
    """

    logprobs: list[FloatArray]
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What `train_step` did: what the gradient was computed from, and what the optimizer says."""

    output: ForwardBackwardOutput
    metrics: Mapping[str, float]
    refused: NonFiniteGradientError | None = None
    """Why the optimizer took no step."""


async def stepped(backend: Backend, output: ForwardBackwardOutput, params: AdamParams) -> StepOutput:
    """The optimizer step after `forward_backward`, also where the backend refuses the gradient."""
    try:
        return StepOutput(output, await backend.optim_step(params))
    except NonFiniteGradientError as error:
        return StepOutput(output, {}, error)


class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that Assay uses."""

    eos_token_id: int | None

    def encode(self, text: str, *, add_special_tokens: bool = ...) -> list[int]:
        """Token ids of `text`."""
        ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = ...) -> str:
        """Text of token ids."""
        ...


class Backend(Protocol):
    """A policy that can be sampled and trained."""

    capabilities: Capabilities
    tokenizer: Tokenizer
    policy_version: int
    """Number of optimizer steps taken since the start of the run."""
    context_length: int
    """Most tokens of a prompt and its completion together."""
    vocab_size: int
    """Token ids lie below it."""

    def sample_stream(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, seeds: Sequence[int]
    ) -> AsyncGenerator[tuple[int, Completion], None]:
        """One completion per (prompt, seed), each with its place in `prompts`, as they are done.

        A completion depends only on its prompt and seed (except rounding: see `Capabilities.batch_invariant`), and
        all of a call come from the policy at its beginning. Equal prompts share work. Streams may be open side by side;
        closing one ends its work and leaves the backend usable.
        """
        ...

    async def sample(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, seeds: Sequence[int]
    ) -> list[Completion]:
        """All completions of `sample_stream`, in order."""
        found: dict[int, Completion] = {}
        async with aclosing(self.sample_stream(prompts, params, seeds)) as stream:
            async for place, completion in stream:
                found[place] = completion
        if len(found) != len(prompts):
            raise unanswered(len(prompts) - len(found), len(prompts))
        return [found[place] for place in range(len(prompts))]

    async def forward_backward(self, data: Sequence[Datum], loss: LossSpec) -> ForwardBackwardOutput:
        """Add the gradient of the summed loss over `data` to the accumulated gradient."""
        ...

    async def optim_step(self, params: AdamParams) -> Mapping[str, float]:
        """Apply and clear the accumulated gradient; returns `grad_norm` (before clipping), if it is known."""
        ...

    async def train_step(self, data: Sequence[Datum], loss: LossSpec, params: AdamParams) -> StepOutput:
        """`forward_backward` and `optim_step` with nothing to decide in between: a remote backend asks for both at
        once, which saves a round trip."""
        return await stepped(self, await self.forward_backward(data, loss), params)

    async def discard_gradient(self) -> None:
        """Clear the accumulated gradient without a step; called before an error that says that nothing was trained."""
        ...

    async def logprobs(
        self, data: Sequence[Datum], *, temperature: float = 1.0, reference: bool = False
    ) -> list[FloatArray]:
        """Log-probability of every target under the policy, or under the reference policy; no gradient."""
        ...

    async def freeze_reference(self) -> None:
        """Make the present weights the reference policy."""
        ...

    async def refresh_reference(self, mix: float) -> None:
        """Move the reference towards the present weights: reference = (1 - mix) * reference + mix * policy."""
        ...

    async def save_state(self, path: Path) -> None:
        """Write weights, optimizer and reference into the directory `path` (created, must not exist)."""
        ...

    async def load_state(self, path: Path, *, weights_only: bool = False) -> None:
        """Restore what `save_state` wrote; `weights_only` leaves the optimizer fresh."""
        ...

    async def close(self) -> None:
        """Let go of what the policy holds outside this process; it is not used again. Safe to call twice."""
        return


def unanswered(missing: int, asked: int) -> ModelError:
    """The error of a stream that ended early."""
    return ModelError(
        f"The backend answered {asked - missing} of {asked} prompts and left out the others, so the batch is "
        "incomplete. This is a bug of the backend: its sample_stream must yield every place once."
    )
