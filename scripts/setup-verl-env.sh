#!/usr/bin/env bash
# Make the virtual environment in which verl's own classes call Assay's rewards: setup-verl-env.sh FOLDER
#
# verl asks for a GPU's worth of packages (vLLM, wandb, ...); its reward code and its agent loops need what stands here, and
# run on a CPU.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=$1
needed=(packaging numpy ray tensordict omegaconf transformers aiohttp codetiming hydra-core pytest pytest-timeout)
needed+=(pillow cachetools datasets fastapi pandas uvicorn accelerate peft torchdata psutil TransferQueue)

scripts/setup-env.sh "$venv" constraints-verl.txt "${needed[@]}" -e '.[rewards,chess,kernelbench]'
# Without --no-deps pip would install all of them.
"$venv/bin/python" -m pip --disable-pip-version-check install --quiet --no-deps -c constraints-verl.txt verl
