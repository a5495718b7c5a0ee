"""The records that flow through everything: frozen, plain data, JSON-serialisable.

    Task -> (env, policy) -> Transition -> Trajectory -> TrajectoryGroup -> Datum -> backend

Text is kept beside tokens and never re-tokenised; log-probabilities come with the tokens that were sampled, under the
distribution that was sampled. A `Score` whose status is `errored` has no value: it is our failure, not the model's, and
is excluded from the baseline, the advantages and the loss.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Json = Any
"""A value that `json.dumps` takes: str, int, float, bool, None, or lists and string-keyed mappings of these."""

Role = Literal["system", "user", "assistant"]
StopReason = Literal["stop", "length"]
"""Why sampling one completion ended: a stop token was drawn, or `max_tokens` was reached."""
EpisodeEnd = Literal["done", "max_turns", "length", "errored"]
"""Why one rollout ended: the env said so, the turn limit, the context limit, or a failure of ours."""
ScoreStatus = Literal["scored", "invalid", "errored"]
MAX_REWARD = 1e15
"""Largest size of a reward: beyond about 1e16 float64 does not tell whole numbers apart, and squares of what training
makes of rewards must fit into float32."""


def is_usable_reward(value: float) -> bool:
    """Whether a number can be a reward: finite, and at most `MAX_REWARD` in size."""
    return math.isfinite(value) and abs(value) <= MAX_REWARD


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that a run needs of the machine, looked at: a row of `assay doctor`."""

    name: str
    ok: bool
    found: str
    """What is there, or what is wrong."""
    cure: str = ""
    """What to do where it is not ok."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation."""

    role: Role
    content: str


def messages_of(prompt: str | Sequence[Message | Mapping[str, str]]) -> tuple[Message, ...]:
    """A text, or messages as plain data, as messages.

    Raises:
        TypeError, ValueError: it is neither.
    """
    if isinstance(prompt, str):
        return (Message("user", prompt),)
    if not isinstance(prompt, Sequence) or not prompt:
        raise TypeError(f"prompt={prompt!r} is neither a text nor a list of messages")
    return tuple(_message(one) for one in prompt)


def _message(one: object) -> Message:
    role, content = (one.role, one.content) if isinstance(one, Message) else (None, None)
    if isinstance(one, Mapping):
        role, content = one.get("role"), one.get("content")
    if role not in ("system", "user", "assistant") or not isinstance(content, str):
        raise ValueError(
            f"{one!r} is not a message: it needs a role (system, user or assistant) and a content that is text"
        )
    return one if isinstance(one, Message) else Message(role, content)


@dataclass(frozen=True, slots=True)
class Task:
    """One problem that can be posed to a policy and verified.

    `payload` holds what the verifier needs and the policy must not see. `tags` name the slices that metrics are split
    by (a level, a task type, the side to move).
    """

    env: str
    id: str
    prompt: tuple[Message, ...]
    payload: Mapping[str, Json] = field(default_factory=dict)
    tags: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        prompt: str | Sequence[Message | Mapping[str, str]],
        answer: Json = None,
        *,
        tags: Sequence[str] = (),
        id: str = "",
        env: str = "",
        **payload: Json,
    ) -> Task:
        """A task as it is most often written: `Task.of("2+2=", answer="4")`.

        Args:
            prompt: what the policy is told: a text, or messages (`Message`, or `{"role": ..., "content": ...}`).
            answer: what is right; kept in `payload`, and read as `task.answer`.
            tags: names of slices that metrics are split by.
            id: names the task in traces; if empty, the task is named by its key.
            env: names the environment; if empty, the code that collects tasks names it.
            payload: what else the verifier needs.

        Raises:
            TypeError, ValueError: a prompt that is neither, or tags that are not texts.
        """
        if isinstance(tags, str) or not all(isinstance(tag, str) for tag in tags):
            raise TypeError(f"tags={tags!r} of a Task must be a list of texts")
        known = {} if answer is None else {"answer": answer}
        return cls(env, id, messages_of(prompt), {**known, **payload}, tuple(tags))

    @property
    def answer(self) -> Json:
        """The right answer, where `payload` has one."""
        return self.payload.get("answer")

    @property
    def text(self) -> str:
        """The contents of the prompt's messages, each on lines of its own."""
        return "\n".join(message.content for message in self.prompt)

    @property
    def key(self) -> str:
        """Stable content hash (hex, 16 characters) of env, prompt and payload; equal problems have equal keys."""
        content = [self.env, [[m.role, m.content] for m in self.prompt], self.payload]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to sample. `stop` are token ids that end a completion; the drawn stop token is part of the completion."""

    max_tokens: int
    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0
    stop: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Completion:
    """Sampled tokens with their log-probabilities (nats) under the distribution that was sampled, same length.

    `ref_logprobs` are those of a reference policy, if the sampler has them already.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    stop_reason: StopReason
    policy_version: int
    ref_logprobs: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class Score:
    """What a verifier says of one completion.

    `scored`: judged. `invalid`: the model's fault (unparsable, illegal), with a value. `errored`: ours, no value.
    `parts` are the named rewards before weighting; `evidence` says in plain data what the verdict rests on;
    `fingerprint` identifies the verifier (program, version, options), so that a score can be traced and replayed.
    """

    status: ScoreStatus
    value: float | None
    parts: Mapping[str, float] = field(default_factory=dict)
    evidence: Mapping[str, Json] = field(default_factory=dict)
    usage: Mapping[str, float] = field(default_factory=dict)
    cached: bool = False
    fingerprint: str = ""

    def __post_init__(self) -> None:
        if self.status not in ("scored", "invalid", "errored"):
            raise ValueError(f"status={self.status!r} of a Score must be scored, invalid or errored")
        if (self.value is None) != (self.status == "errored"):
            raise ValueError(f"a Score has a value unless it is errored: status={self.status}, value={self.value}")
        given = () if self.value is None else (("value", self.value),)
        for name, value in (*given, *self.parts.items()):
            if not is_usable_reward(value):
                raise ValueError(
                    f"Score {name} is {value:g}: a verifier must return finite rewards of at most {MAX_REWARD:g} in "
                    "size, or status 'errored'"
                )

    @property
    def why(self) -> str:
        """Why there is no value, in words; empty where nothing is known."""
        return str(self.evidence.get("error") or self.evidence.get("message") or "")


@dataclass(frozen=True, slots=True)
class Transition:
    """One turn: what the policy saw, what it said, and what that earned.

    `messages` are those that a conversation begins with at this turn: what the env said first, or what it put in place
    of everything so far. Empty where the turn goes on with what was said before, or where no env speaks in messages.
    """

    prompt_tokens: tuple[int, ...]
    completion: Completion
    text: str
    """What was judged: the completion's text, without the thought before it."""
    score: Score
    metrics: Mapping[str, float] = field(default_factory=dict)
    messages: tuple[Message, ...] = ()
    thought: str | None = None
    """What the policy thought before it answered; None where nothing parts the two."""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One rollout: its turns in order, and why it ended."""

    task: Task
    transitions: tuple[Transition, ...]
    stop_reason: EpisodeEnd
    seed: int
    error: str = ""
    """Why it is errored, where no turn's score says so."""

    @property
    def errored(self) -> bool:
        """Whether any turn could not be scored; such a rollout trains nothing."""
        # Asked many times of every rollout, and a generator would take twice as long.
        return self.stop_reason == "errored" or "errored" in [t.score.status for t in self.transitions]

    @property
    def failure(self) -> str:
        """Why it is errored, in words; empty if it is not errored or has no reason."""
        if not self.errored:
            return ""
        return self.error or (self.transitions[-1].score.why if self.transitions else "")

    @property
    def reward(self) -> float | None:
        """Undiscounted sum of the turns' values, or None when errored."""
        if self.errored:
            return None
        return sum(t.score.value for t in self.transitions if t.score.value is not None)


@dataclass(frozen=True, slots=True)
class TrajectoryGroup:
    """The rollouts of one task under one policy, ordered by sample index."""

    task: Task
    trajectories: tuple[Trajectory, ...]


FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Datum:
    """One training sequence: per-token streams, next-token aligned, all of shape [T].

    `tokens[t]` is the input at position t and `targets[t]` the token it must predict, so `targets[t] == tokens[t + 1]`
    inside a sequence. `mask` is 1 where the target was sampled by the policy (or must be imitated) and 0 elsewhere.
    `advantages` multiply the objective and already carry the batch's global normaliser; under `cross_entropy` they are
    Tinker's `weights`. `logprobs` are those of the behaviour policy. `weights` is that normaliser by itself, for the
    terms of a loss that no advantage multiplies (KL, entropy). `importance` are weights that advantages still have to
    be multiplied by (truncated importance sampling); None stands for 1. Streams are 0 where `mask` is 0.
    """

    tokens: IntArray
    targets: IntArray
    logprobs: FloatArray
    advantages: FloatArray
    mask: FloatArray
    ref_logprobs: FloatArray | None = None
    weights: FloatArray | None = None
    importance: FloatArray | None = None

    def __post_init__(self) -> None:
        streams = (
            self.tokens,
            self.targets,
            self.logprobs,
            self.advantages,
            self.mask,
            self.ref_logprobs,
            self.weights,
            self.importance,
        )
        lengths = {len(stream) for stream in streams if stream is not None}
        if len(lengths) != 1:
            raise ValueError(f"all streams of a Datum must have one length, got {sorted(lengths)}")

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def prompt_length(self) -> int:
        """Number of leading positions before the first trained target; the whole length when nothing is trained."""
        trained = np.flatnonzero(self.mask)
        return int(trained[0]) if len(trained) else len(self.mask)
