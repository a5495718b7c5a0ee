"""verl's own workers and advantages over Assay's agent loop; what stands in for is the model server and the queue."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from omegaconf import OmegaConf
from tensordict import TensorDict
from verl.experimental.agent_loop import agent_loop as loops
from verl.protocol import DataProto
from verl.trainer.ppo.v1 import agent_loop_tq
from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories
from verl.utils.dataset.rl_dataset import RLHFDataset
from verl.workers.rollout.replica import TokenOutput

from assay.integrations.environments import ListedTask, Prepared, tasks_of
from assay.integrations.verl import agent_manager
from assay.integrations.verl.agent_data import NAME, loops_of, rows_of
from support.hosts import BUDGET, Play, Script, bytes_tokenizer, logprobs_of

WORKER: Any = agent_loop_tq.AgentLoopWorkerTQ.__ray_metadata__.modified_class


class Server:
    """A model server that says what a play says. `most` cuts what it says."""

    def __init__(self, play: Play, most: int = 1 << 20) -> None:
        self._script, self._most = Script(play), most
        self.asked: list[Mapping[str, Any]] = []

    async def generate(
        self, request_id: str, *, prompt_ids: Sequence[int], sampling_params: dict[str, Any], **_: Any
    ) -> TokenOutput:
        self.asked.append({"request": request_id, "prompt": len(prompt_ids), **sampling_params})
        tokens = self._script.tokens(prompt_ids, min(self._most, sampling_params.pop("max_tokens")))
        steps = {"min_global_steps": 3, "max_global_steps": 3}
        return TokenOutput(token_ids=tokens, log_probs=logprobs_of(tokens), stop_reason="completed", extra_fields=steps)


class Queue:
    """The part of TransferQueue that a worker writes to."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Any]] = {}
        self.tags: dict[str, Mapping[str, Any]] = {}

    async def async_kv_put(self, key: str, partition_id: str, tag: Mapping[str, Any]) -> None:
        self.tags[key] = tag

    async def async_kv_batch_put(
        self, keys: Sequence[str], fields: TensorDict, tags: Sequence[Mapping[str, Any]], partition_id: str
    ) -> None:
        for place, (key, tag) in enumerate(zip(keys, tags, strict=True)):
            self.rows[key] = {name: fields[name][place] for name in fields.keys()}  # noqa: SIM118
            self.tags[key] = tag


def trainer_config(size: int, budget: Any = BUDGET) -> Any:
    rollout = {
        "prompt_length": budget.prompt,
        "response_length": budget.response,
        "n": size,
        "val_kwargs": {"n": size, "top_p": 1.0, "top_k": -1, "temperature": 0.0},
        "multi_turn": {"tool_config_path": None},
    }
    return OmegaConf.create(
        {
            "actor_rollout_ref": {"rollout": rollout, "model": {"path": "none"}},
            "algorithm": {"adv_estimator": "assay"},
            "data": {"tool_config_path": None, "apply_chat_template_kwargs": {}},
        }
    )


def worker_of(config: Any, server: Any) -> Any:
    """verl's worker as it is once it has loaded a tokenizer."""
    worker = object.__new__(WORKER)
    worker.config, worker.llm_client = config, server
    worker.rollout_config = config.actor_rollout_ref.rollout
    worker.tokenizer, worker.processor, worker.hf_model_type = bytes_tokenizer(), None, None
    worker.dataset_cls, worker.tools, worker.mm_processor_kwargs = RLHFDataset, [], {}
    worker.distillation_enabled, worker.reward_loop_worker_handles = False, None
    return worker


def first_tasks(play: Play, one: Prepared, split: Any = "train") -> list[ListedTask]:
    return sorted(tasks_of(one.environment, split), key=lambda row: row[0].key)[: play.tasks]


def run_prompts(
    play: Play,
    one: Prepared,
    *,
    split: Any = "train",
    server: Any = None,
    worker: Any = None,
    budget: Any = BUDGET,
    **entry: Any,
) -> Queue:
    """All prompts of a play through verl's worker, one after the other, into a queue."""
    queue, listed = Queue(), rows_of(first_tasks(play, one, split), one)
    worker = worker or worker_of(trainer_config(play.group_size, budget), server or Server(play))
    config = OmegaConf.create(yaml.safe_load(loops_of(one)))[0]
    config.update(entry)

    async def run() -> None:
        for place, row in enumerate(listed):
            columns = {**row, "raw_prompt": row["prompt"], "index": place, "uid": f"u{place}", "global_steps": 3}
            trajectory = {"step": 3, "sample_index": place, "rollout_n": 0, "validate": split == "heldout"}
            await worker._run_prompt(columns, {"temperature": 1.0, "logprobs": True}, trajectory)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agent_loop_tq, "tq", queue)
        patch.setitem(loops._agent_loop_registry, NAME, config)
        patch.setattr(loops, "rollout_trace_attr", lambda **_: nullcontext())
        asyncio.run(run())
    return queue


def advantages_of(queue: Queue) -> dict[str, list[float]]:
    """verl's own advantages of the rows, by key, token by token."""
    keys = list(queue.rows)
    fields = {name: [queue.rows[key][name] for key in keys] for name in ("response_mask", "rm_scores")}
    padded = {name: torch.nn.utils.rnn.pad_sequence(rows, batch_first=True) for name, rows in fields.items()}
    padded["token_level_rewards"] = padded["rm_scores"]
    uids = np.array([key.rsplit("_", 2)[0] for key in keys], dtype=object)
    data = DataProto(TensorDict(padded, batch_size=len(keys)), {"uid": uids})
    done = compute_advantage_for_multi_trajectories(
        data, keys, agent_manager.ESTIMATOR, config=SimpleNamespace(), num_repeat=4
    )
    sizes = [len(row) for row in fields["response_mask"]]
    found = zip(keys, done.batch["advantages"], sizes, strict=True)
    return {key: advantages[:size].tolist() for key, advantages, size in found}


def rollouts_of(queue: Queue, uid: str, size: int) -> list[list[dict[str, Any]]]:
    """The rows of each rollout of a prompt."""
    advantages = advantages_of(queue) if queue.rows else {}
    found: list[list[dict[str, Any]]] = [[] for _ in range(size)]
    for key, row in queue.rows.items():
        name, member, _ = key.rsplit("_", 2)
        if name == uid:
            found[int(member)].append({**row, "advantages": advantages[key]})
    return found


def extra_of(row: Mapping[str, Any]) -> dict[str, Any]:
    extra = row["extra_fields"]
    return dict(getattr(extra, "data", extra))


def as_json(value: Any) -> Any:
    return json.loads(json.dumps(value))
