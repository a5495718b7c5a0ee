#!/usr/bin/env bash
# GRPO with verl on a whole environment: Assay's turns, scores and credit, verl's sampling and optimizer.
#
#     assay export-data chess --verl chess_data --tokenizer Qwen/Qwen3-0.6B
#     MODEL=Qwen/Qwen3-0.6B DATA=chess_data examples/run_grpo_env.sh [override ...]
#
# MODEL    what to train; the same as --tokenizer of the export
# DATA     the folder that `assay export-data` wrote
# PYTHON   the Python that verl is installed for
# --print as only argument       print the overrides, and start nothing
#
# Further arguments are overrides for verl and win over those here. Everything is checked first.
set -euo pipefail

python=${PYTHON:-python}
: "${MODEL:?MODEL is not set: name the model to train}"
: "${DATA:?DATA is not set: name the folder that assay export-data wrote}"
# Files, group size, temperature, and what hands Assay's credit on.
mapfile -t exported < "$DATA/overrides.txt"

overrides=(
    "${exported[@]}"
    data.train_batch_size=32
    data.max_prompt_length=2048
    data.max_response_length=2048
    "actor_rollout_ref.model.path=$MODEL"
    actor_rollout_ref.rollout.name=vllm
    actor_rollout_ref.actor.ppo_mini_batch_size=32
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4
    actor_rollout_ref.rollout.tensor_model_parallel_size=1
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
