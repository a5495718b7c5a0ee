#!/usr/bin/env bash
# Make the virtual environment in which the Tinker cookbook and OpenEnv play Assay's environments: setup-hosts-env.sh FOLDER
#
# Both ask for more than their environments need (renderers of audio, web pages, ...); what stands here is enough for those.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=$1
needed=(tinker anyio blobfile cloudpickle datasets pillow pydantic termcolor tiktoken tqdm)
needed+=(fastapi fastmcp packaging requests typer typing_extensions uvicorn websockets)

scripts/setup-env.sh "$venv" constraints-hosts.txt "${needed[@]}" pytest pytest-timeout -e '.[rewards,torch,chess,kernelbench]'
# Without --no-deps pip would install all of them.
"$venv/bin/python" -m pip --disable-pip-version-check install --quiet --no-deps -c constraints-hosts.txt tinker-cookbook openenv
