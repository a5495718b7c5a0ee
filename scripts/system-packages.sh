#!/usr/bin/env bash
# See that the system programs which Assay uses are there; install missing ones with apt-get where that is allowed.
# stockfish judges chess moves and is required. bubblewrap isolates untrusted code and is only asked for.
# `system-packages.sh browser` sees to Chromium instead, in which tests open pages; without it they are skipped.
set -euo pipefail

have_stockfish() { [[ -x ${STOCKFISH_PATH:-} ]] || command -v stockfish >/dev/null || [[ -x /usr/games/stockfish ]]; }
have_bubblewrap() { command -v bwrap >/dev/null; }
have_browser() {
    local name
    for name in "${CHROMIUM_PATH:-}" chromium chromium-browser google-chrome google-chrome-stable chrome; do
        [[ -n $name ]] && "$name" --version >/dev/null 2>&1 && return
    done
    return 1
}

as_root() {
    if [[ $(id -u) == 0 ]]; then "$@"; else sudo -n "$@"; fi
}

may_install() {
    command -v apt-get >/dev/null && { [[ $(id -u) == 0 ]] || sudo -n true 2>/dev/null; }
}

missing=()
if [[ ${1:-} == browser ]]; then
    have_browser || missing+=(chromium)
else
    have_stockfish || missing+=(stockfish)
    have_bubblewrap || missing+=(bubblewrap)
fi
((${#missing[@]})) || exit 0

if may_install; then
    echo "Installing ${missing[*]} with apt-get"
    export DEBIAN_FRONTEND=noninteractive
    as_root apt-get update -qq >/dev/null || echo "warning: apt-get update failed; trying the known package lists" >&2
    for package in "${missing[@]}"; do
        as_root apt-get install -y -qq --no-install-recommends "$package" >/dev/null ||
            echo "warning: apt-get could not install $package" >&2
    done
fi

if [[ ${1:-} == browser ]]; then
    have_browser || echo "warning: Chromium is missing; tests that open pages in a browser are skipped: apt-get install chromium" >&2
    exit 0
fi
have_bubblewrap || echo "warning: bubblewrap is missing; code from models will need it to run isolated: apt-get install bubblewrap" >&2
if ! have_stockfish; then
    echo "error: stockfish is missing; chess moves cannot be judged without it. Install it (apt-get install stockfish) or set STOCKFISH_PATH to the program." >&2
    exit 1
fi
