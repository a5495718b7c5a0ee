"""The Tinker cookbook's own RL loop on an Assay environment, against any server of the Tinker API.

    TINKER_BASE_URL=... TINKER_API_KEY=tml-... python tinker_cookbook_env.py MODEL \
        --env dataset_builder=own_env.py:LargestDigit --cookbook log_path=runs/cookbook num_epochs=6

`--env` takes settings of `assay train`, `--cookbook` those of the cookbook's `rl.train.Config`. A batch has `--groups`
tasks, each with as many rollouts as the environment's group size says.
"""

import argparse
import asyncio
import random
from collections.abc import Sequence

import chz
from tinker_cookbook.rl import train as rl
from tinker_cookbook.rl.types import EnvGroupBuilder, RLDataset, RLDatasetBuilder
from tinker_cookbook.tokenizer_utils import get_tokenizer

from assay.integrations.cookbook_environment import TaskGroup
from assay.integrations.environments import Prepared, prepared, tasks_of


class Tasks(RLDataset):
    """The training tasks once, shuffled; the cookbook's `num_epochs` repeats them."""

    def __init__(self, one: Prepared, model_name: str, groups_per_batch: int) -> None:
        tokenizer = get_tokenizer(model_name)
        groups = [TaskGroup(reference, one, tokenizer) for reference, _ in tasks_of(one.environment, "train")]
        random.Random(one.playing.seed).shuffle(groups)
        self._groups, self._size = groups, groups_per_batch

    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        return self._groups[index * self._size : (index + 1) * self._size]

    def __len__(self) -> int:
        return -(-len(self._groups) // self._size)


@chz.chz
class TasksBuilder(RLDatasetBuilder):
    prepared: str
    """The environment, as JSON."""
    model_name: str
    groups_per_batch: int

    async def __call__(self) -> tuple[RLDataset, RLDataset | None]:
        return Tasks(Prepared.from_json(self.prepared), self.model_name, self.groups_per_batch), None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="as the server names it, and a folder or hub id that has its tokenizer")
    parser.add_argument("--env", nargs="+", required=True, metavar="KEY=VALUE")
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--cookbook", nargs="+", required=True, metavar="KEY=VALUE")
    args = parser.parse_args()
    one = prepared(None, args.env, get_tokenizer(args.model))
    tasks = TasksBuilder(prepared=one.to_json(), model_name=args.model, groups_per_batch=args.groups)
    blueprint = chz.Blueprint(rl.Config).apply(
        {
            "model_name": args.model,
            "recipe_name": "assay",
            "learning_rate": 1e-4,
            "max_tokens": one.playing.params.max_tokens,
            "temperature": one.playing.params.temperature,
            "dataset_builder": tasks,
        }
    )
    asyncio.run(rl.main(blueprint.make_from_argv(args.cookbook)))


if __name__ == "__main__":
    main()
