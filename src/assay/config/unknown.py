"""What is said of a key that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Sequence


def unknown_key(key: str, layer: str, known: Sequence[str], otherwise: str) -> str:
    """Message for a key that does not exist: equal last parts elsewhere first, then similar ones, then similar keys."""
    parent, _, leaf = key.rpartition(".")
    near = [k for k in known if k.rpartition(".")[2] == leaf]
    siblings = {k.rpartition(".")[2]: k for k in known if k.rpartition(".")[0] == parent}
    near += [siblings[name] for name in difflib.get_close_matches(leaf, siblings, n=2, cutoff=0.7)]
    near += [k for name, k in siblings.items() if leaf == "".join(word[0] for word in name.split("_"))]
    if parent in known and not siblings:
        near = [parent]
    if not near:
        leaves = difflib.get_close_matches(leaf, {k.rpartition(".")[2] for k in known}, n=1, cutoff=0.7)
        near = [k for k in known if k.rpartition(".")[2] in leaves]
    near = list(dict.fromkeys(near or difflib.get_close_matches(key, known, n=2)))[:3]
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    return f"{key} ({layer}): this setting does not exist, so it would have no effect.{hint} {otherwise}".rstrip()
