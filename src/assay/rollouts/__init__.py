"""Playing environments with a policy: messages to tokens, groups to trajectories."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from assay.rollouts.play import play
    from assay.rollouts.renderers.base import ChatRenderer, PlainRenderer, Renderer, make_renderer
    from assay.rollouts.runner import PreparedGroup, prepare, run_groups
    from assay.rollouts.sampling import Policy
else:
    from assay.exports import lazy_exports

    __getattr__, __dir__ = lazy_exports(__name__)

__all__ = [
    "ChatRenderer",
    "PlainRenderer",
    "Policy",
    "PreparedGroup",
    "Renderer",
    "make_renderer",
    "play",
    "prepare",
    "run_groups",
]
