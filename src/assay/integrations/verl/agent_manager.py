"""`AssayAgentLoopManager`: verl's own manager of agent loops, which checks the config first and brings the estimator.

    +actor_rollout_ref.rollout.agent.agent_loop_manager_class=assay.integrations.verl.agent_manager.AssayAgentLoopManager

verl imports it in the process of its trainer, where advantages are computed; so the estimator is known there.
"""

from __future__ import annotations

import logging
from typing import Any

from assay.errors import ConfigError, MissingDependencyError
from assay.integrations.verl.agent_check import ESTIMATOR
from assay.integrations.verl.check import check_config

try:
    from verl.trainer.ppo.core_algos import register_adv_est
    from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ
except ImportError as error:
    raise MissingDependencyError(
        f"AssayAgentLoopManager belongs to the V1 trainer of verl 0.9, which cannot be imported here ({error}). "
        "Install verl>=0.9 with what its trainer needs."
    ) from error

logger = logging.getLogger(__name__)


def as_given(token_level_rewards: Any, response_mask: Any, config: Any = None, **_: Any) -> tuple[Any, Any]:
    """The advantages that `AssayAgentLoop` has put in the place of rewards, as they are.

    Args:
        token_level_rewards, response_mask: (rows, tokens of a response).

    Returns:
        Advantages and returns, both of that shape.
    """
    advantages = token_level_rewards * response_mask
    return advantages, advantages


register_adv_est(ESTIMATOR)(as_given)


class AssayAgentLoopManager(AgentLoopManagerTQ):  # type: ignore[misc]
    """See the module.

    Raises:
        ConfigError: verl would do other than the config says.
    """

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        findings = check_config(config)
        for finding in findings:
            logger.warning("%s", finding)
        if wrong := [str(finding) for finding in findings if finding.level == "error"]:
            raise ConfigError("\n".join(["verl would not train on what Assay hands over:", *wrong]))
        super().__init__(config, *args, **kwargs)
