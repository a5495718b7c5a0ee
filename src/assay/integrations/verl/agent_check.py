"""Whether verl's config leaves the credit of Assay's agent loop as it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from assay.integrations.verl.reward_function import Finding, at, error, warning

ESTIMATOR = "assay"
"""Name of the estimator that passes advantages on as they are."""
LOOP = "assay.integrations.verl.agent_loop.AssayAgentLoop"
MANAGER = "assay.integrations.verl.agent_manager.AssayAgentLoopManager"
METRIC = "assay_reward"
"""What `algorithm.filter_groups` can filter by."""
MOST_BYTES = 1_000_000
"""Of a YAML file of agent loops."""
_ROLLOUT = "actor_rollout_ref.rollout"
_AGENT = f"{_ROLLOUT}.agent"


def plays_environments(data: Mapping[str, Any]) -> bool:
    """Whether a config (plain data) is to play Assay's environments."""
    if at(data, f"{_AGENT}.agent_loop_manager_class") == MANAGER or at(data, "algorithm.adv_estimator") == ESTIMATOR:
        return True
    entries, _ = _entries(at(data, f"{_AGENT}.agent_loop_config_path"))
    return any(entry.get("_target_") == LOOP for entry in entries)


def check_agent_loop(data: Mapping[str, Any]) -> Iterator[Finding]:
    """What would change the credit, or keep the environment from being played."""
    yield from _check_loop(data)
    yield from _check_credit(data)
    yield from _check_rows(data)


def _check_loop(data: Mapping[str, Any]) -> Iterator[Finding]:
    key = f"{_AGENT}.agent_loop_config_path"
    entries, why = _entries(at(data, key))
    if why:
        yield error(key, f"{why} Set it to the agent_loop.yaml that `assay export-data` wrote.")
    elif not any(entry.get("_target_") == LOOP for entry in entries):
        yield error(key, f"none of its entries has _target_: {LOOP}. Write the file with `assay export-data`.")
    key = f"{_AGENT}.agent_loop_manager_class"
    if at(data, key) != MANAGER:
        yield error(key, f"verl's trainer would not know the estimator {ESTIMATOR}. Set +{key}={MANAGER}.")
    if at(data, "trainer.use_v1") is False:
        yield error(
            "trainer.use_v1",
            "the V0 trainer takes one score for a whole rollout and ends at the first that cannot be scored, so credit "
            "for turns, for prompts that are written anew and of whole groups would be lost. Set trainer.use_v1=true.",
        )


def _check_credit(data: Mapping[str, Any]) -> Iterator[Finding]:
    estimator = at(data, "algorithm.adv_estimator")
    if estimator != ESTIMATOR:
        yield error(
            "algorithm.adv_estimator",
            f"{estimator} would compute advantages from Assay's advantages. Set algorithm.adv_estimator={ESTIMATOR}.",
        )
    if at(data, "algorithm.use_kl_in_reward"):
        yield error(
            "algorithm.use_kl_in_reward",
            "the penalty would be taken from advantages, which stand in the place of rewards. Set "
            "algorithm.use_kl_in_reward=false actor_rollout_ref.actor.use_kl_loss=true.",
        )
    if at(data, "reward.reward_model.enable"):
        yield error(
            "reward.reward_model.enable", "verl would replace the credit by that model's scores. Set it to false."
        )
    metric = at(data, "algorithm.filter_groups.metric")
    if at(data, "algorithm.filter_groups.enable") and metric != METRIC:
        yield error(
            "algorithm.filter_groups.metric",
            f"{metric} is not a reward here: verl would sum advantages. Set algorithm.filter_groups.metric={METRIC}.",
        )
    n = at(data, f"{_ROLLOUT}.n")
    if isinstance(n, int) and n < 2:
        yield error(f"{_ROLLOUT}.n", "a rollout is compared with others of its prompt; with one there is no signal.")


def _check_rows(data: Mapping[str, Any]) -> Iterator[Finding]:
    if at(data, "data.filter_overlong_prompts"):
        yield error(
            "data.filter_overlong_prompts",
            "verl would measure prompts by its own rendering, and silently drop every row where that fails. Assay "
            "leaves out what is too long. Set data.filter_overlong_prompts=false.",
        )
    prompt, response, most = (
        at(data, f"{_ROLLOUT}.{k}") for k in ("prompt_length", "response_length", "max_model_len")
    )
    if all(isinstance(one, int) for one in (prompt, response, most)) and prompt + response > most:
        yield error(
            f"{_ROLLOUT}.max_model_len",
            f"{most} tokens do not hold a prompt of {prompt} and a response of {response}: the server would cut "
            f"completions short. Set it to {prompt + response} or more, or null.",
        )
    mode = at(data, "trainer.v1.trainer_mode")
    if mode in (None, "sync") and not at(data, "trainer.v1.sampler.sync_refill_failed_groups"):
        yield warning(
            "trainer.v1.sampler.sync_refill_failed_groups",
            "groups of which no rollout could be scored are not replaced, and a batch of them ends the run. Set it to "
            "true.",
        )


def _entries(path: object) -> tuple[list[Mapping[str, Any]], str]:
    """The agent loops of a YAML file; and why there are none."""
    if not isinstance(path, str) or not path:
        return [], "no file of agent loops is set, so verl would sample one plain answer."
    try:
        with Path(path).expanduser().open(encoding="utf-8") as file:
            text = file.read(MOST_BYTES + 1)
        found = yaml.safe_load(text) if len(text) <= MOST_BYTES else None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as refused:
        return [], f"{path} cannot be read ({refused})."
    if not isinstance(found, list) or not all(isinstance(entry, Mapping) for entry in found):
        return [], f"{path} is not a list of agent loops."
    return found, ""
