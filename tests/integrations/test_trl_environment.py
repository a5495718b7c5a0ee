"""TRL's real `GRPOTrainer` trains on Assay's environments; what its rollouts carry, and what is refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from assay.errors import ConfigError, DataError
from assay.integrations.environments import close_environments
from assay.integrations.trl_environment import TRLEnvironment, environment
from support.hosts import GOLDEN, PLAYS, Play, Script, bytes_tokenizer, prepared_play

FAILING = """
from assay.envs import Environment, Task

class Fails(Environment):
    def tasks(self):
        return [Task.of(f"{n}=", answer=str(n)) for n in range(4)]

    def score(self, task, text):
        if text == "!":
            raise RuntimeError("the judge is dead")
        return text == task.answer
"""


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder
        close_environments()


class Trainer(SimpleNamespace):
    """What `rollout_func` uses of a trainer, with a scripted policy."""

    def __init__(self, play: Play, response: int = 8192, context: int = 1 << 20) -> None:
        tokenizer, self._script = bytes_tokenizer(), Script(play)
        self.calls: list[int] = []
        super().__init__(
            processing_class=tokenizer,
            eos_token_ids=[tokenizer.eos_token_id],
            num_generations=play.group_size,
            num_generations_eval=1,
            model=SimpleNamespace(training=True, config=SimpleNamespace(max_position_embeddings=context)),
            accelerator=SimpleNamespace(unwrap_model=lambda model: model, num_processes=1),
            state=SimpleNamespace(global_step=0),
            args=SimpleNamespace(max_completion_length=response),
        )

    def _generate_single_turn(self, ids: list[list[int]], images: None, fields: dict[str, Any], n: int) -> Any:
        self.calls.append(len(ids))
        return [self._script.tokens(prompt, self.args.max_completion_length) for prompt in ids], None


def rollouts(env: TRLEnvironment, trainer: Trainer, play: Play) -> dict[str, list[Any]]:
    """What TRL is given for the first tasks of a play, by key."""
    rows = sorted(env.dataset("train"), key=lambda row: json.loads(row["assay_task"])["key"])[: play.tasks]
    return env.rollout_func([row["prompt"] for row in rows for _ in range(play.group_size)], trainer)


@pytest.mark.parametrize("name", ["own", "guess", "chess", "monitor"])
def test_trl_is_given_assays_own_tokens_and_rewards(name: str) -> None:
    play = PLAYS[name]
    trainer = Trainer(play)
    found = rollouts(TRLEnvironment(prepared_play(play)), trainer, play)
    golden = json.loads((GOLDEN / f"{name}.json").read_text())
    assert trainer.calls[0] == play.tasks * play.group_size, "all prompts are sampled in one call"
    expected = [(rollout, row) for group in golden for rollout in group["rollouts"] for row in rollout["rows"]]
    assert found["completion_ids"] == [row["response_ids"] for _, row in expected]
    assert found["env_mask"] == [row["mask"] for _, row in expected]
    assert found["assay_reward"] == [rollout["reward"] for rollout, _ in expected]
    assert [len(ids) for ids in found["prompt_ids"]] == [row["prompt_ids"][0] for _, row in expected]


def own(folder: Path, text: str = FAILING) -> TRLEnvironment:
    (folder / "mine.py").write_text(text)
    name = text.partition("class ")[2].partition("(")[0]
    tokenizer = bytes_tokenizer()
    return environment(None, [f"dataset_builder={folder}/mine.py:{name}", "max_tokens=8"], tokenizer=tokenizer)


def test_what_could_not_be_scored_has_no_reward(tmp_path: Path) -> None:
    play = Play((), {"": ("0", "!", "", "x")}, 4, 1)
    env = own(tmp_path)
    found = rollouts(env, Trainer(play), play)
    assert sorted(map(str, found["assay_reward"])) in (["0.0", "0.0", "0.0", "None"], ["0.0", "0.0", "1.0", "None"])
    place = found["assay_reward"].index(None)
    assert found["env_mask"][place] == [0] and len(found["completion_ids"][place]) == 1
    logged: dict[str, Any] = {}
    kept = {key: value for key, value in found.items() if key.startswith("assay")}
    assert env.reward_func([], [], log_metric=logged.__setitem__, **kept) == found["assay_reward"]
    assert logged["assay/errored"] == 0.25


def test_a_prompt_over_budget_is_not_cut_and_not_scored(tmp_path: Path) -> None:
    play = Play((), {"": ("0",)}, 2, 1)
    trainer = Trainer(play, response=4, context=5)
    found = rollouts(own(tmp_path), trainer, play)
    assert found["assay_reward"] == [None, None] and trainer.calls == []


def test_processes_that_sample_in_one_call_are_not_left_to_hang() -> None:
    play = PLAYS["guess"]
    trainer, env = Trainer(play), TRLEnvironment(prepared_play(play))
    trainer.accelerator.num_processes = 2
    trainer.args.use_vllm, trainer.args.vllm_mode = True, "server"
    with pytest.raises(ConfigError, match="waited for without end"):
        rollouts(env, trainer, play)
    trainer.args.vllm_mode, trainer.args.vllm_tensor_parallel_size = "colocate", 1
    assert rollouts(env, trainer, play)["assay_reward"]


def test_a_process_without_a_rollout_to_sample_takes_part_in_the_call_of_the_others(tmp_path: Path) -> None:
    play = Play((), {"": ("0",)}, 2, 1)
    trainer = Trainer(play, response=4, context=5)
    trainer.accelerator.num_processes = 2
    trainer.args.use_vllm, trainer.is_fsdp_enabled = False, True
    assert rollouts(own(tmp_path), trainer, play)["assay_reward"] == [None, None]
    assert trainer.calls == [1]


def test_prompts_written_anew_are_refused_unless_the_last_is_wanted(tmp_path: Path) -> None:
    text = """
from assay.envs import Environment, Message, Score, StepResult, Task

class Anew(Environment):
    max_turns = 2

    def tasks(self):
        return [Task.of(f"{n}=") for n in range(4)]

    def env(self, task):
        return One()

class One:
    async def reset(self):
        return [Message("user", "go")]

    async def step(self, text):
        return StepResult(Score("scored", 1.0), done=False, messages=(Message("user", f"again {text}"),), replace=True)
"""
    play, env = Play((), {"": ("a", "b")}, 2, 1), own(tmp_path, text)
    with pytest.raises(ConfigError, match=r"has 2 training rows.*one row per completion"):
        rollouts(env, Trainer(play), play)
    env._rebuilt = "last"
    found = rollouts(env, Trainer(play), play)
    assert found["assay_reward"] == [2.0, 2.0]
    assert [bytes_tokenizer().decode(ids) for ids in found["prompt_ids"]] == ["again a", "again b"]


def test_prompts_that_are_not_of_the_environment_are_refused(tmp_path: Path) -> None:
    env, play = own(tmp_path), Play((), {"": ("0",)}, 1, 1)
    with pytest.raises(DataError, match="not in this environment's data sets"):
        env.rollout_func([[{"role": "user", "content": "0="}]], Trainer(play))
    with pytest.raises(DataError, match="not played by the environment"):
        env.reward_func([], [])


def test_tasks_of_one_prompt_are_told_apart_by_a_mark(tmp_path: Path) -> None:
    env, play = own(tmp_path, FAILING.replace('f"{n}="', '"same"')), Play((), {"": ("0", "1", "2", "3")}, 1, 3)
    assert {message["content"] for row in env.dataset("train") for message in row["prompt"]} == {"same"}
    rows = list(env.dataset("train"))
    found = env.rollout_func([row["prompt"] for row in rows for _ in range(4)], Trainer(Play((), play.says, 4)))
    assert [sum(found["assay_reward"][4 * i : 4 * i + 4]) for i in range(len(rows))] == [1.0] * len(rows)


def test_a_trainer_that_samples_over_the_end_of_a_reply_is_refused(tmp_path: Path) -> None:
    env, play = own(tmp_path), Play((), {"": ("0",)}, 1, 1)
    trainer = Trainer(play)
    trainer.eos_token_ids = [5]
    with pytest.raises(ConfigError, match=r"samples on over them \(it stops at \[5\]\)"):
        rollouts(env, trainer, play)


def test_it_can_be_called_inside_an_event_loop(tmp_path: Path) -> None:
    env, play = own(tmp_path), Play((), {"": ("x",)}, 2, 1)

    async def notebook() -> Sequence[float | None]:
        return rollouts(env, Trainer(play), play)["assay_reward"]

    assert asyncio.run(notebook()) == [0.0, 0.0]
