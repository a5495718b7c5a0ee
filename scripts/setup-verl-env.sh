#!/usr/bin/env bash
# Make the virtual environment in which verl's own classes call Assay's rewards: setup-verl-env.sh FOLDER
#
# verl asks for a GPU's worth of packages (vLLM, wandb, ...); its reward code needs what stands here, and runs on a CPU.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=$1
needed=(packaging numpy ray tensordict omegaconf transformers aiohttp codetiming hydra-core pytest pytest-timeout)

scripts/setup-env.sh "$venv" constraints-verl.txt "${needed[@]}" -e '.[rewards]'
# Without --no-deps pip would install all of them.
"$venv/bin/python" -m pip --disable-pip-version-check install --quiet --no-deps -c constraints-verl.txt verl
