"""The check on configs of verl before 0.9, whose YAML files are not here: nested dictionaries of their keys."""

from __future__ import annotations

from typing import Any

from assay.integrations.verl.check import check_config, our_file


def found(function: dict[str, Any], model: dict[str, Any], **more: Any) -> dict[str, str]:
    config = {"custom_reward_function": function, "reward_model": model, **more}
    return {finding.key: str(finding) for finding in check_config(config)}


OURS = {"path": our_file(), "name": "compute_score", "reward_kwargs": {"reward": "support.host_rewards:ShareOfWords"}}


def test_the_specifications_setup_is_right_for_them() -> None:
    assert found(OURS, {"reward_manager": "batch"}) == {}


def test_naive_asks_one_question_at_a_time() -> None:
    findings = found(OURS, {"reward_manager": "naive"})
    assert findings == {"reward_model.reward_manager": findings["reward_model.reward_manager"]}
    assert (
        "warning" in findings["reward_model.reward_manager"] and "Set batch" in findings["reward_model.reward_manager"]
    )


def test_managers_that_turn_failures_into_zeros() -> None:
    assert "reward of 0.0" in found(OURS, {"reward_manager": "prime"})["reward_model.reward_manager"]
    timeout = {"reward_manager": "batch", "reward_kwargs": {"compute_score_timeout": 5}}
    assert "engine.call_deadline_s" in found(OURS, timeout)["reward_model.reward_kwargs.compute_score_timeout"]


def test_keys_of_09_are_ignored_by_them() -> None:
    findings = found(OURS, {"reward_manager": "batch"}, reward={"custom_reward_function": {"path": "mine.py"}})
    assert "Set custom_reward_function.path." in findings["reward.custom_reward_function.path"]


def test_an_asynchronous_function_is_not_awaited() -> None:
    findings = found(OURS | {"name": "acompute_score"}, {"reward_manager": "batch"})
    assert "takes its coroutine for the reward" in findings["custom_reward_function.name"]
    assert found(OURS | {"name": "acompute_score"}, {"reward_manager": "naive", "use_reward_loop": True}) == {}


def test_without_a_function_verl_scores_by_itself() -> None:
    findings = found({"path": None, "name": None}, {"reward_manager": "batch"})
    assert "not with your reward" in findings["custom_reward_function.path"]
