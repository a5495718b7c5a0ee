#!/usr/bin/env bash
# Print the command of a Python that is new enough. PYTHON names one to use instead.
set -euo pipefail

new_enough='import sys; sys.exit(sys.version_info < (3, 11))'
for candidate in ${PYTHON:-python3.11 python3.12 python3.13 python3 python}; do
    if "$candidate" -c "$new_enough" >/dev/null 2>&1; then
        echo "$candidate"
        exit 0
    fi
done
echo "error: no Python 3.11 or newer found (tried: ${PYTHON:-python3.11 python3.12 python3.13 python3 python})." \
    "Install one, or name it: make PYTHON=/path/to/python3.11" >&2
exit 1
