#!/usr/bin/env bash
# Make the virtual environment in which the Tinker cookbook's programs run: setup-cookbook-env.sh FOLDER
#
# The cookbook asks for a tml-renderers that no public index has; only its image and sound recipes import it.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=$1
needed=(tinker aiohttp blobfile chz cloudpickle datasets numpy pillow pyrage rich termcolor tiktoken transformers
    tml-renderers)

scripts/setup-env.sh "$venv" constraints-cookbook.txt "${needed[@]}"
# Without --no-deps pip would look for that version, and give up.
"$venv/bin/python" -m pip --disable-pip-version-check install --quiet --no-deps -c constraints-cookbook.txt tinker-cookbook
