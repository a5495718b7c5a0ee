"""Any Assay environment in the Tinker cookbook's own RL loop.

    TINKER_BASE_URL=... TINKER_API_KEY=tml-... python tinker_cookbook_environment.py own_env.py:LargestDigit MODEL \
        log_path=runs/digits [a setting of the cookbook, such as learning_rate=1e-4 ...]

Nothing in here knows which server it trains on.
"""

import asyncio
import sys
from collections.abc import Sequence

import chz
from tinker_cookbook.rl import train as rl
from tinker_cookbook.rl.types import EnvGroupBuilder, RLDataset, RLDatasetBuilder
from tinker_cookbook.tokenizer_utils import get_tokenizer

from assay.integrations.cookbook_environment import TaskGroup
from assay.integrations.environments import prepared, tasks_of


class Tasks(RLDataset):
    def __init__(self, groups: Sequence[EnvGroupBuilder], batch_size: int) -> None:
        self.groups, self.batch_size = groups, batch_size

    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        return self.groups[index * self.batch_size : (index + 1) * self.batch_size]

    def __len__(self) -> int:
        return -(-len(self.groups) // self.batch_size)


@chz.chz
class EnvironmentTasks(RLDatasetBuilder):
    environment: str
    model_name: str
    batch_size: int = 16

    async def __call__(self) -> tuple[RLDataset, RLDataset | None]:
        tokenizer = get_tokenizer(self.model_name)
        one = prepared(self.environment, (), tokenizer)
        train, heldout = (
            [TaskGroup(reference, one, tokenizer) for reference, _ in tasks_of(one.environment, split)]
            for split in ("train", "heldout")
        )
        return Tasks(train, self.batch_size), Tasks(heldout, len(heldout)) if heldout else None


def main(environment: str, model: str, *arguments: str) -> None:
    one = prepared(environment, (), get_tokenizer(model))
    settings = {"environment": environment, "model_name": model}
    blueprint = chz.Blueprint(rl.Config).apply(
        {
            "dataset_builder": EnvironmentTasks,
            **{f"dataset_builder.{name}": value for name, value in settings.items()},
            "model_name": model,
            "recipe_name": "assay",
            "renderer_name": "role_colon",  # of the checkpoint's record alone: Assay's renderer writes the prompts
            # Turns are cut and judged as in Assay's own loop.
            "max_tokens": one.playing.params.max_tokens,
            "temperature": one.playing.params.temperature,
            "learning_rate": 1e-3,
            "lora_rank": 16,
            "save_every": 0,
        }
    )
    asyncio.run(rl.main(blueprint.make_from_argv(list(arguments))))


if __name__ == "__main__":
    main(*sys.argv[1:]) if len(sys.argv) > 3 else sys.exit(__doc__)
