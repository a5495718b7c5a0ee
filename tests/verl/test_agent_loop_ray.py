"""The agent loop under real Ray: verl's own manager, workers and TransferQueue; only the model server is a stand-in."""

from __future__ import annotations

import copy
import json
import os
import shlex
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from transformers import LlamaConfig
from verl.utils import tensordict_utils
from verl.utils.dataset.rl_dataset import RLHFDataset

from assay.errors import ConfigError
from assay.integrations.environments import TaskReference, close_environments, tasks_of
from assay.integrations.verl.agent_data import overrides_of, rows_of, write_data
from assay.integrations.verl.agent_manager import AssayAgentLoopManager
from assay.integrations.verl.check import check_config, compose
from support.hosts import GOLDEN, PLAYS, bytes_tokenizer, prepared_play
from support.verl_agents import Server, first_tasks

ROOT = Path(__file__).parents[2]
PLAY = PLAYS["guess"]


@pytest.fixture(scope="module", autouse=True)
def environments_end() -> Iterator[None]:
    yield
    close_environments()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tmp_path = tmp_path_factory.mktemp("model")
    bytes_tokenizer().save_pretrained(tmp_path)
    shape = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    LlamaConfig(**shape, architectures=["LlamaForCausalLM"]).save_pretrained(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def config(model: Path) -> Any:
    one = prepared_play(PLAY)
    write_data(one, model / "data")
    rollout = ("actor_rollout_ref.rollout.name=vllm", "actor_rollout_ref.rollout.agent.num_workers=1")
    lengths = ("data.max_prompt_length=256", "data.max_response_length=64")
    path = f"actor_rollout_ref.model.path={model}"
    # Each takes one of the few CPUs of the tests' cluster.
    units = "transfer_queue.backend.SimpleStorage.num_data_storage_units=1"
    return compose([units, *overrides_of(one, model / "data", True), path, *rollout, *lengths])


@pytest.mark.timeout(300)
def test_rows_and_credit_come_through_the_transfer_queue(ray_cluster: None, config: Any) -> None:
    import transfer_queue as tq

    one = prepared_play(PLAY)
    golden = json.loads((GOLDEN / "guess.json").read_text())
    tq.init(OmegaConf.create(OmegaConf.to_container(config.transfer_queue, resolve=True)))
    try:
        manager = AssayAgentLoopManager.create(config, llm_client=Server(PLAY), reward_loop_worker_handles=None)
        rows = rows_of(first_tasks(PLAY, one)[:1], one)
        columns: dict[str, Any] = {name: np.array([row[name] for row in rows], dtype=object) for name in rows[0]}
        columns |= {"raw_prompt": columns["prompt"], "uid": np.array(["u0"], dtype=object)}
        columns |= {"index": np.array([0], dtype=object), "dummy_tensor": torch.zeros(1, 1)}
        batch = tensordict_utils.get_tensordict(columns)
        tensordict_utils.assign_non_tensor_data(batch, "global_steps", 3)
        manager.generate_sequences(batch)
        tags: dict[str, Any] = {}
        give_up = time.monotonic() + 90
        while tags.get("u0", {}).get("status") not in ("finished", "failure") and time.monotonic() < give_up:
            time.sleep(0.1)
            tags = tq.kv_list(partition_id="train").get("train", {})
        assert tags["u0"]["status"] == "finished"
        for member, rollout in enumerate(golden[0]["rollouts"]):
            fields = ["responses", "response_mask", "rm_scores"]
            (own,) = rollout["rows"]
            found = tq.kv_batch_get(keys=[f"u0_{member}_0"], partition_id="train", select_fields=fields)
            assert found["responses"][0].tolist() == own["response_ids"]
            assert found["response_mask"][0].tolist() == own["mask"]
            assert found["rm_scores"][0].tolist() == pytest.approx(own["advantages"])
    finally:
        tq.close()


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("algorithm.adv_estimator=grpo", "algorithm.adv_estimator=assay"),
        ("algorithm.use_kl_in_reward=true", "use_kl_loss=true"),
        ("trainer.use_v1=false", "trainer.use_v1=true"),
        ("actor_rollout_ref.rollout.agent.agent_loop_config_path=null", "no file of agent loops"),
        ("data.filter_overlong_prompts=true", "filter_overlong_prompts=false"),
        ("actor_rollout_ref.rollout.n=1", "no signal"),
        ("actor_rollout_ref.rollout.max_model_len=300", "320 or more"),
    ],
)
def test_the_manager_refuses_what_would_lose_credit(config: Any, override: str, said: str) -> None:
    changed, (key, _, value) = copy.deepcopy(config), override.partition("=")
    OmegaConf.update(changed, key, json.loads(value) if value != "grpo" else value)
    assert [finding for finding in check_config(config) if finding.level == "error"] == []
    with pytest.raises(ConfigError, match="verl would not train on") as refused:
        AssayAgentLoopManager(changed)
    assert said in str(refused.value)


def test_verls_own_data_set_reads_the_rows(config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path))
    rows = RLHFDataset([config.data.train_files], bytes_tokenizer(), config.data)
    one = prepared_play(PLAY)
    assert len(rows) == len(tasks_of(one.environment, "train"))
    row = rows[1]
    assert (row["agent_name"], row["index"], row["extra_info"]["split"]) == ("assay", 1, "train")
    assert TaskReference.from_json(row["extra_info"]["assay_task"]).environment == one.environment
    assert row["raw_prompt"][-1]["role"] == "user"


def test_the_example_scripts_overrides_pass_the_check(config: Any, model: Path) -> None:
    done = subprocess.run(
        ["bash", ROOT / "examples" / "run_grpo_env.sh", "--print"],
        env={**os.environ, "MODEL": str(model), "DATA": str(model / "data")},
        capture_output=True,
        text=True,
        check=True,
    )
    composed = compose(shlex.split(done.stdout))
    assert check_config(composed) == []
    assert composed.data.train_files == config.data.train_files
