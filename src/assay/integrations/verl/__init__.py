"""Assay's rewards in verl: `compute_score` for its reward managers, a manager for its reward loop, and a check.

verl 0.9     reward.custom_reward_function.path=pkg://assay.integrations.verl  .name=acompute_score
             or reward.reward_manager.source=importlib .module.path=pkg://assay.integrations.verl.manager
             .name=AssayRewardManager
before 0.8   custom_reward_function.path=<this file> .name=compute_score  reward_model.reward_manager=batch

verl loads this file a second time under a name of its own when it is given as a path. Everything that has state or is
sent to another process is therefore in the modules below it.
"""

from assay.integrations.verl.score import acompute_score, compute_score

__all__ = ["acompute_score", "compute_score"]
