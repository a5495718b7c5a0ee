#!/usr/bin/env bash
# GRPO with verl on a whole environment: Assay's turns, scores and credit, verl's sampling and optimizer.
#
#     assay export-data chess --verl chess_data --tokenizer Qwen/Qwen3-0.6B
#     MODEL=Qwen/Qwen3-0.6B DATA=chess_data examples/run_grpo_env.sh [override ...]
#
# MODEL    what to train; the same as --tokenizer of the export
# DATA     the folder that `assay export-data` wrote
# GROUP    rollouts of a prompt (default 8)
# PYTHON   the Python that verl is installed for
# --print as only argument       print the overrides, and start nothing
#
# Further arguments are overrides for verl and win over those here. Everything is checked first.
set -euo pipefail

python=${PYTHON:-python}
: "${MODEL:?MODEL is not set: name the model to train}"
: "${DATA:?DATA is not set: name the folder that assay export-data wrote}"
data=$(cd "$DATA" && pwd)
agent=actor_rollout_ref.rollout.agent

overrides=(
    "data.train_files=$data/train.parquet"
    "data.val_files=$data/heldout.parquet"
    data.filter_overlong_prompts=false
    data.train_batch_size=32
    data.max_prompt_length=2048
    data.max_response_length=2048
    "$agent.agent_loop_config_path=$data/agent_loop.yaml"
    "+$agent.agent_loop_manager_class=assay.integrations.verl.agent_manager.AssayAgentLoopManager"
    # Credit is Assay's: advantages stand where verl expects rewards, and are passed on as they are.
    algorithm.adv_estimator=assay
    algorithm.use_kl_in_reward=false
    "actor_rollout_ref.model.path=$MODEL"
    actor_rollout_ref.rollout.name=vllm
    "actor_rollout_ref.rollout.n=${GROUP:-8}"
    actor_rollout_ref.actor.ppo_mini_batch_size=32
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4
    actor_rollout_ref.rollout.tensor_model_parallel_size=1
    trainer.use_v1=true
    # Replaces a group of which no rollout could be scored, instead of stopping.
    trainer.v1.sampler.sync_refill_failed_groups=true
    "trainer.logger=[console]"
    trainer.project_name=assay
    trainer.experiment_name=grpo_env
)

if [[ ${1:-} == --print ]]; then
    printf '%q\n' "${overrides[@]}"
    exit 0
fi

"$python" -m assay.integrations.verl check "${overrides[@]}" "$@"
exec "$python" -m verl.trainer.main_ppo "${overrides[@]}" "$@"
