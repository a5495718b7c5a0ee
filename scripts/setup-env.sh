#!/usr/bin/env bash
# Make a virtual environment with pinned packages: setup-env.sh FOLDER CONSTRAINTS REQUIREMENT...
#
# torch comes first and alone, so that it can come from elsewhere: TORCH_INDEX_URL names a package index to take it from
# (one with CPU builds saves gigabytes on a machine without a GPU). Everything else uses pip's ordinary configuration.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=$1
constraints=$2
shift 2
python=$(scripts/find-python.sh)

if [[ ! -x $venv/bin/python ]]; then
    echo "Creating $venv with $("$python" --version)"
    "$python" -m venv "$venv"
fi
pip=("$venv/bin/python" -m pip --disable-pip-version-check)

torch=(install --quiet --no-deps -c "$constraints" ${TORCH_INDEX_URL:+--index-url "$TORCH_INDEX_URL"} torch)
if ! command -v nvidia-smi >/dev/null && "${pip[@]}" "${torch[@]}" --dry-run --report - | grep -q '"nvidia-'; then
    echo "note: pip chose a CUDA build of torch (gigabytes), and no NVIDIA GPU was found here. To avoid it, interrupt and" \
        "give an index with CPU builds: make TORCH_INDEX_URL=..." >&2
fi

echo "Installing packages into $venv (minutes the first time)"
"${pip[@]}" "${torch[@]}"
"${pip[@]}" install --quiet -c "$constraints" "$@"
