"""How many tokens a model can attend to."""

from __future__ import annotations

import logging
from typing import Any

from assay.errors import ModelError

logger = logging.getLogger(__name__)

FIELDS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length", "n_ctx")
"""Where the configs of different architectures say how many positions there are."""
WITHOUT_LIMIT = frozenset(
    {"bloom", "mamba", "mamba2", "falcon_mamba", "recurrent_gemma", "xlstm", "rwkv", "nemotron_h", "zamba2"}
)
"""Model types that count no positions: they have recurrent states, or attention biased by distance."""
LENGTH_DEPENDENT = frozenset({"dynamic", "longrope"})
"""Rotary positions whose angles depend on the longest sequence at hand."""
CHOSEN = ("index_topk", "indexer_budget", "keep_window_size")
"""Where configs say how many earlier tokens sparse attention chooses, by scores of which rounding and ties decide."""
NO_LIMIT = 2**31 - 1
"""The context of a model without a limit."""


def context_length(model: Any) -> int:
    """Most tokens the model can attend to.

    Rotary angles that change with the longest sequence at hand would make a token's log-probability depend on what is
    sampled after it, so the context ends where they begin to. It also ends where sparse attention begins to choose
    among the earlier tokens: one token more or less in the choice is another log-probability.

    Raises:
        ModelError: the config gives no context length.
    """
    config = _text_config(model)
    return min(_positions(config), _static_positions(config) or NO_LIMIT, _all_attended(config) or NO_LIMIT)


def warn_of_shortened_context(model: Any) -> None:
    """Say so where the context is shorter than the config's.

    Raises:
        ModelError: as `context_length`.
    """
    config = _text_config(model)
    limit, used = _positions(config), context_length(model)
    if used == limit:
        return
    if used == _all_attended(config):
        cause = "its attention chooses among the earlier tokens, and rounding decides which"
    else:
        cause = "its rotary positions change with the length of the whole sequence"
    logger.warning(
        "The context of this %s model is taken as %d tokens, not %d: behind them, %s, so sampled and trained "
        "log-probabilities would differ.",
        config.model_type,
        used,
        limit,
        cause,
    )


def _text_config(model: Any) -> Any:
    """The config of the language model, which one that also takes images or sound holds in its own."""
    return model.config.get_text_config(decoder=True)


def _positions(config: Any) -> int:
    found = [getattr(config, name, None) for name in FIELDS]
    limit = next((value for value in found if isinstance(value, int) and value > 0), None)
    if limit is not None:
        return limit
    if config.model_type in WITHOUT_LIMIT:
        return NO_LIMIT
    raise ModelError(
        f"The config of a {config.model_type} model does not give a context length, so Assay cannot tell when a "
        "sequence is too long for it. Set max_position_embeddings in its config.json."
    )


def _static_positions(config: Any) -> int | None:
    """Positions up to which rotary angles do not depend on the length of the sequence; None: they never do."""
    rope = getattr(config, "rope_parameters", None) or {}
    parts = [part for part in rope.values() if isinstance(part, dict)] or [rope]
    moving = [part for part in parts if part.get("rope_type", "default") in LENGTH_DEPENDENT]
    if not moving:
        return None
    firsts = [part.get("original_max_position_embeddings") for part in moving]
    firsts.append(getattr(config, "original_max_position_embeddings", None))
    return min((int(first) for first in firsts if first), default=_positions(config))


def _all_attended(config: Any) -> int | None:
    """Tokens up to which sparse attention attends to all there are; None: it is not sparse, or not by such a choice."""
    found = [getattr(config, name, None) for name in CHOSEN]
    # DeepSeek V4 chooses among blocks of compressed tokens, MiniMax M3 among plain blocks.
    rates = getattr(config, "compress_rates", None) or {}
    found[0] = found[0] and found[0] * int(rates.get("compressed_sparse_attention", 1))
    blocks, size = (getattr(config, name, None) for name in ("index_topk_blocks", "index_block_size"))
    return min((int(value) for value in (*found, blocks and size and blocks * size) if value), default=None)
