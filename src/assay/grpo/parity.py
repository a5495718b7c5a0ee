"""The parity gate: no optimizer step, and no score, on tokens that the trainer's policy did not sample.

The log-probabilities that tokens were sampled with are held against those that the trainer computes for them, on tokens
of the present weights alone, so that like is compared with like. Where the first forward pass of training recomputes
them anyway, all are compared, between that pass and its optimizer step. Elsewhere (later optimizer steps of a batch,
rollouts ahead of their step, evaluations) a probe of some of them is recomputed. Nothing is sampled for it, so no seed
moves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Literal

import chz

from assay.backends.base import Backend, Precision
from assay.backends.parity import LIMITS, Comparison, Limits, choose, compare, in_words
from assay.config import Above, AtLeast, Settings, UsedWhen
from assay.errors import TrainingError
from assay.grpo.buffer import BufferedGroup
from assay.types import Datum, FloatArray

CURE = (
    "They should differ by rounding alone. Look for weights or adapters that were not handed to the sampler, another "
    "temperature, another chat template or start token, truncation of the distribution, and attention to padding"
)
Of = Literal["step data", "run", "evaluation"]
"""What is judged: rollouts of the caller's own, those of a run, or the answers of an evaluation."""
_THEN: dict[Of, str] = {
    "step data": " (and for a missing policy_version of older rollouts). Where the sampler only computes in another "
    "precision or engine, set tis_cap=2 and raise parity.kl_limit and parity.tail_limit. Nothing was trained on these "
    "tokens.",
    "run": ". Where the sampler only computes in another precision or engine, set grpo.tis_cap=2 and raise "
    "grpo.parity.kl_limit and grpo.parity.tail_limit. Nothing was trained on these tokens.",
    "evaluation": ". Where the sampler only computes in another precision or engine, raise grpo.parity.kl_limit and "
    "grpo.parity.tail_limit. No score was recorded.",
}


@chz.chz
class ParityConfig(Settings):
    """The check that the sampler is the policy that is trained: before each optimizer step, and in evaluations."""

    enabled: bool = True
    """Stop, before the optimizer step or the score, when sampler and trainer disagree on tokens that the present
    weights sampled."""
    kl_limit: Annotated[float | None, Above(0), UsedWhen("enabled", True)] = None
    """Largest KL divergence of the sampler from the trainer, in nats per token, the worst token left out. Null decides
    by precision: 1e-5 in float32, 0.001 in TF32 (float32 on CUDA), 0.005 in bfloat16, and 0.02 for a mixture of experts
    in bfloat16 and where the sampler is not Assay's own."""
    tail_limit: Annotated[float | None, Above(0), UsedWhen("enabled", True)] = None
    """Largest 99th percentile of |log-ratio| over the tokens, in nats. Null decides by precision, in the same order:
    0.001, 0.1, 0.3 and 1."""
    max_ratio_error: Annotated[float | None, AtLeast(0), UsedWhen("enabled", True)] = None
    """Largest |trainer / sampler - 1| of the probability of any single token; null sets no limit."""
    tokens: Annotated[int, AtLeast(1), UsedWhen("enabled", True)] = 512
    """About how many sampled tokens are recomputed where training does not recompute them anyway (evaluations, rollouts
    ahead of their step, later optimizer steps of a batch). The sequence with the shortest prompt and the longest
    sequence are always among them, whole."""

    def limits(self, precision: Precision) -> Limits:
        """The limits that apply where the coarser side computes in `precision`."""
        usual = LIMITS[precision]
        kl = usual.kl if self.kl_limit is None else self.kl_limit
        return Limits(kl, usual.tail if self.tail_limit is None else self.tail_limit, self.max_ratio_error)


class Gate:
    """The checks of one training step or one evaluation. Without `enabled` it lets everything pass."""

    def __init__(
        self,
        backend: Backend,
        config: ParityConfig,
        temperature: float,
        precision: Precision | None = None,
        drop: Callable[[Sequence[BufferedGroup]], None] | None = None,
        of: Of = "run",
    ) -> None:
        """A gate of the present policy.

        Args:
            temperature: at which the tokens were sampled.
            precision: of the coarser side; by default the backend's own.
            drop: told of the groups of a pass that is refused, which must not be trained on again.
            of: what is judged, which decides what the message tells to do.
        """
        self._drop = drop
        self.enabled = config.enabled
        self._backend = backend
        self._config = config
        self._temperature = temperature
        self._precision = precision
        self._of = of
        self._found: list[Comparison] = []

    async def before_passes(self, groups: Sequence[BufferedGroup], ahead: Sequence[Datum]) -> None:
        """Probe what no pass will recompute under the weights that sampled it.

        Args:
            groups: of this step, of which the first pass recomputes only a part.
            ahead: what the present weights sampled for later steps.

        Raises:
            TrainingError: as `judge`.
        """
        now = self._backend.policy_version
        await self.probe(ahead, "The rollouts that were sampled ahead")
        await self.probe([d for g in groups if g.policy_version == now for d in g.data], "The rollouts of this step")

    async def probe(self, data: Sequence[Datum], what: str) -> None:
        """Recompute some of the sequences, all of which the present weights sampled.

        Raises:
            TrainingError: as `judge`.
        """
        if not self.enabled:
            return
        chosen = [data[i] for i in choose(data, self._config.tokens, self._backend.policy_version)]
        if chosen:
            self.judge(chosen, await self._backend.logprobs(chosen, temperature=self._temperature), what)

    def judge(self, data: Sequence[Datum], trainer: Sequence[FloatArray], what: str) -> None:
        """Compare what the trainer found for sequences that the present weights sampled.

        Args:
            what: names the tokens in the message: "The rollouts of this step".

        Raises:
            TrainingError: sampler and trainer disagree; the message has the numbers, and what to do.
        """
        found = compare(data, trainer) if self.enabled else None
        if found is None:
            return
        self._found.append(found)
        limits = self._config.limits(self._precision or self._backend.capabilities.precision)
        if found.agrees(limits):
            return
        raise TrainingError(
            f"{what} were not sampled by the policy that is trained. Sampler and trainer disagree "
            f"{in_words(found, limits, self._backend.tokenizer)}. {CURE}{_THEN[self._of]}"
        )

    def judges(self, groups: Sequence[BufferedGroup]) -> bool:
        """Whether `judge_pass` would compare anything of these groups."""
        now = self._backend.policy_version
        return self.enabled and any(group.policy_version == now for group in groups)

    async def judge_pass(
        self, groups: Sequence[BufferedGroup], data: Sequence[Datum], trainer: Sequence[FloatArray]
    ) -> None:
        """Compare what a forward pass of training found, on those of its groups that the present weights sampled.

        Args:
            groups: of the pass.
            data: of all its groups, in order.
            trainer: per datum [T].

        Raises:
            TrainingError: as `judge`; the gradient is discarded.
        """
        now = self._backend.policy_version
        present = [group.policy_version == now for group in groups for _ in group.data]
        pairs = [(d, x) for d, x, own in zip(data, trainer, present, strict=True) if own]
        try:
            self.judge([d for d, _ in pairs], [x for _, x in pairs], "The rollouts of this step")
        except TrainingError:
            await self._backend.discard_gradient()
            if self._drop is not None:
                self._drop(groups)
            raise

    def metrics(self, prefix: str = "") -> dict[str, float]:
        """The largest of each figure over the checks; empty where nothing was compared."""
        if not self._found:
            return {}
        return {
            f"{prefix}parity/kl": max(f.kl for f in self._found),
            f"{prefix}parity/tail": max(f.tail for f in self._found),
            f"{prefix}parity/ratio_error": max(f.token for f in self._found),
            f"{prefix}parity/tokens": float(sum(f.tokens for f in self._found)),
        }
