#!/usr/bin/env bash
# GRPO with verl, rewarded by Assay's monitor: judge calls are limited, retried, cached and shared among all workers.
#
#     export TRAIN_WITH_MONITOR=true OPENAI_API_KEY=... MONITOR_CACHE=true
#     MODEL=Qwen/Qwen3-0.6B TRAIN_FILES=train.parquet VAL_FILES=test.parquet examples/run_grpo.sh [override ...]
#
# MODEL, TRAIN_FILES, VAL_FILES  what to train, and on what (parquet files as verl reads them)
# REWARD                         reward to use instead of the monitor: a name, or path.py:name
# VERL_GENERATION                0.9 (default), or legacy for versions before 0.8
# PYTHON                         the Python that verl is installed for
# --print as only argument       print the overrides, and start nothing
#
# Further arguments are overrides for verl and win over those here. Everything is checked first: verl would silently
# ignore keys that belong to another of its generations, and score with rules of its own.
set -euo pipefail

python=${PYTHON:-python}
: "${MODEL:?MODEL is not set: name the model to train}"
: "${TRAIN_FILES:?TRAIN_FILES is not set: name the parquet file to train on}"
: "${VAL_FILES:?VAL_FILES is not set: name the parquet file to validate on}"
reward=${REWARD:-monitor}

overrides=(
    algorithm.adv_estimator=grpo
    "data.train_files=$TRAIN_FILES"
    "data.val_files=$VAL_FILES"
    data.train_batch_size=128
    data.max_prompt_length=1024
    data.max_response_length=1024
    "actor_rollout_ref.model.path=$MODEL"
    actor_rollout_ref.rollout.name=vllm
    actor_rollout_ref.rollout.n=8
    actor_rollout_ref.actor.ppo_mini_batch_size=64
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4
    actor_rollout_ref.rollout.tensor_model_parallel_size=1
    "trainer.logger=[console]"
    trainer.project_name=assay
    trainer.experiment_name=grpo
)

case ${VERL_GENERATION:-0.9} in
0.9)
    overrides+=(
        reward.reward_manager.source=importlib
        reward.reward_manager.module.path=pkg://assay.integrations.verl.manager
        reward.reward_manager.name=AssayRewardManager
        "+reward.custom_reward_function.reward_kwargs.reward=$reward"
        # Replaces a group that could not be scored at all, instead of stopping.
        trainer.v1.sampler.sync_refill_failed_groups=true
    )
    ;;
legacy)
    overrides+=(
        "custom_reward_function.path=$("$python" -m assay.integrations.verl path)"
        custom_reward_function.name=compute_score
        reward_model.reward_manager=batch
        "+custom_reward_function.reward_kwargs.reward=$reward"
    )
    ;;
*)
    echo "error: VERL_GENERATION=$VERL_GENERATION is neither 0.9 nor legacy." >&2
    exit 2
    ;;
esac

if [[ ${1:-} == --print ]]; then
    printf '%q\n' "${overrides[@]}"
    exit 0
fi

"$python" -m assay.integrations.verl check "${overrides[@]}" "$@"
exec "$python" -m verl.trainer.main_ppo "${overrides[@]}" "$@"
