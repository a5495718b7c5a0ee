"""The Tinker cookbook's own supervised and RL loops on a task of your own: answer a digit with one as large.

    TINKER_BASE_URL=... TINKER_API_KEY=tml-... python tinker_cookbook_digits.py supervised log_path=sft model_name=MODEL
    ... python tinker_cookbook_digits.py rl log_path=rl model_name=MODEL load_checkpoint_path=tinker://...

The supervised examples answer with any digit, which teaches the form and no more; RL then rewards digits that are large
enough.
Nothing in here knows which server it trains on.
"""

import asyncio
import random
import sys
from collections.abc import Sequence
from functools import partial

import chz
import tinker
from tinker_cookbook import renderers
from tinker_cookbook.rl import train as rl
from tinker_cookbook.rl.problem_env import ProblemEnv, ProblemGroupBuilder
from tinker_cookbook.rl.types import EnvGroupBuilder, RLDataset, RLDatasetBuilder
from tinker_cookbook.supervised import train as supervised
from tinker_cookbook.supervised.data import conversation_to_datum
from tinker_cookbook.supervised.types import SupervisedDataset, SupervisedDatasetBuilder
from tinker_cookbook.tokenizer_utils import get_tokenizer

RENDERER = "role_colon"
DIGITS = "0123456789"


def renderer_of(model_name: str) -> renderers.Renderer:
    return renderers.get_renderer(RENDERER, get_tokenizer(model_name))


class AsLarge(ProblemEnv):
    """Reward 1 for a digit that is no smaller than the question's, and 0.1 less for an answer that does not end."""

    def __init__(self, renderer: renderers.Renderer, digit: str) -> None:
        super().__init__(renderer)
        self.digit = digit

    def get_question(self) -> str:
        return self.digit

    def check_answer(self, sample_str: str) -> bool:
        return self.check_format(sample_str) and sample_str.strip() >= self.digit

    def check_format(self, sample_str: str) -> bool:
        return sample_str.strip() in set(DIGITS)

    def get_reference_answer(self) -> str:
        return f"{self.digit} to 9"


class DigitProblems(RLDataset):
    """The ten digits in every batch, a group of answers for each."""

    def __init__(self, renderer: renderers.Renderer, group_size: int, num_batches: int) -> None:
        self.renderer, self.group_size, self.num_batches = renderer, group_size, num_batches

    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        return [
            ProblemGroupBuilder(partial(AsLarge, self.renderer, digit), self.group_size, "digits") for digit in DIGITS
        ]

    def __len__(self) -> int:
        return self.num_batches


@chz.chz
class DigitProblemsBuilder(RLDatasetBuilder):
    model_name: str
    group_size: int = 8
    num_batches: int = 20

    async def __call__(self) -> tuple[RLDataset, RLDataset | None]:
        renderer = renderer_of(self.model_name)
        return DigitProblems(renderer, self.group_size, self.num_batches), DigitProblems(renderer, 4, 1)


class DigitAnswers(SupervisedDataset):
    """Questions with answers of the right form, whatever the digit."""

    def __init__(self, renderer: renderers.Renderer, batch_size: int, num_batches: int) -> None:
        self.renderer, self.batch_size, self.num_batches = renderer, batch_size, num_batches

    def get_batch(self, index: int) -> list[tinker.Datum]:
        draw = random.Random(index)
        return [self._datum(draw.choice(DIGITS), draw.choice(DIGITS)) for _ in range(self.batch_size)]

    def _datum(self, question: str, answer: str) -> tinker.Datum:
        messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        return conversation_to_datum(messages, self.renderer, max_length=None)

    def __len__(self) -> int:
        return self.num_batches


@chz.chz
class DigitAnswersBuilder(SupervisedDatasetBuilder):
    model_name: str
    batch_size: int = 32
    num_batches: int = 40

    def __call__(self) -> tuple[SupervisedDataset, SupervisedDataset | None]:
        return DigitAnswers(renderer_of(self.model_name), self.batch_size, self.num_batches), None


def main(arguments: Sequence[str]) -> None:
    defaults = {"recipe_name": "digits", "renderer_name": RENDERER, "lora_rank": 16}
    if arguments[:1] == ["supervised"]:
        blueprint = chz.Blueprint(supervised.Config).apply({**defaults, "dataset_builder": DigitAnswersBuilder})
        blueprint.apply({"learning_rate": 1e-2})
        asyncio.run(supervised.main(blueprint.make_from_argv(arguments[1:])))
    elif arguments[:1] == ["rl"]:
        blueprint = chz.Blueprint(rl.Config).apply({**defaults, "dataset_builder": DigitProblemsBuilder})
        blueprint.apply({"learning_rate": 1e-3, "max_tokens": 12, "save_every": 0})
        asyncio.run(rl.main(blueprint.make_from_argv(arguments[1:])))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
