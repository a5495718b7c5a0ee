"""Groups for tinker-cookbook's trainers whose rewards come from the engine, once all rollouts of a group are there.

The builder holds plain settings and pickles; each process makes its engine on first use. Rewards are centred over the
group, so the mean of the others (`on_failure=group_mean`, the default here) gives a rollout that could not be scored an
advantage of exactly 0. A group without any score raises: the cookbook ends or redoes the group, as it is configured to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from assay.errors import MissingDependencyError
from assay.integrations.common.scoring import FLAGS, sample_of, scorer
from assay.rewards import Sample
from assay.types import Json, Message

try:
    import tinker
    from tinker_cookbook.renderers import Renderer, format_content_as_string
    from tinker_cookbook.rl.types import Env, EnvGroupBuilder, StepResult, Trajectory
except ImportError as error:
    raise MissingDependencyError(
        f"assay.integrations.tinker_cookbook needs the Tinker cookbook ({error}): pip install tinker-cookbook."
    ) from error

DEFAULTS: Mapping[str, Json] = {"engine.on_failure": "group_mean"}


class OneTurnEnv(Env):  # type: ignore[misc]
    """One question, one answer; the group computes the reward."""

    def __init__(self, renderer: Renderer, messages: Sequence[Message]) -> None:
        self._renderer, self._messages = renderer, messages

    async def initial_observation(self) -> tuple[Any, Any]:
        """The rendered prompt, and what ends the answer."""
        prompt = [{"role": message.role, "content": message.content} for message in self._messages]
        return self._renderer.build_generation_prompt(prompt), self._renderer.get_stop_sequences()

    async def step(self, action: list[int], *, extra: Any = None) -> Any:
        """Ends the episode. `extra` is not used here."""
        return StepResult(
            reward=0.0,
            episode_done=True,
            next_observation=tinker.ModelInput.from_ints([]),
            next_stop_condition=self._renderer.get_stop_sequences(),
        )


@dataclass(frozen=True)
class ScoredGroup(EnvGroupBuilder):  # type: ignore[misc]
    """`group_size` answers to one prompt, scored together.

    `settings` are those of `assay.integrations.common.settings`, as plain data:
    `{"reward": "judge", "judge.model": ...}`.
    """

    renderer: Renderer
    prompt: tuple[Message, ...]
    group_size: int
    ground_truth: Json = None
    data_source: str = ""
    extra: Mapping[str, Json] = field(default_factory=dict)
    settings: Mapping[str, Json] = field(default_factory=dict)

    async def make_envs(self) -> Sequence[Env]:
        """Fresh environments, one per answer."""
        return [OneTurnEnv(self.renderer, self.prompt) for _ in range(self.group_size)]

    async def compute_group_rewards(
        self, trajectory_group: list[Trajectory], env_group: Sequence[Env]
    ) -> list[tuple[float, dict[str, float]]]:
        """Reward and metrics of each trajectory.

        Raises:
            RewardError: no trajectory of the group could be scored, or the failure policy says so.
        """
        one = scorer(self.settings, DEFAULTS)
        samples = [self._sample(trajectory) for trajectory in trajectory_group]
        rows = one.rows(await one.engine.score_many(samples), [0] * len(samples))
        return [(row["score"], _metrics(row)) for row in rows]

    def logging_tags(self) -> list[str]:
        """Metrics are split by where a prompt is from."""
        return [self.data_source] if self.data_source else []

    def _sample(self, trajectory: Trajectory) -> Sample:
        message, _ = self.renderer.parse_response(trajectory.transitions[-1].ac.tokens)
        # Reasoning included: a monitor reads it.
        text = format_content_as_string(message["content"], separator="")
        return sample_of(text, self.ground_truth, self.data_source, self.extra, self.prompt)


def _metrics(row: Mapping[str, float]) -> dict[str, float]:
    return {name if name in FLAGS else f"reward/{name}": value for name, value in row.items() if name != "score"}
