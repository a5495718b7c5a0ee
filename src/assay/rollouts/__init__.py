"""Playing environments with a policy: messages to tokens, groups to trajectories."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from assay.rollouts.play import play
    from assay.rollouts.renderers.base import PlainRenderer, Renderer
    from assay.rollouts.renderers.chat import ChatRenderer
    from assay.rollouts.renderers.named import make_renderer
    from assay.rollouts.renderers.thinking import Reply
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
    "Reply",
    "make_renderer",
    "play",
    "prepare",
    "run_groups",
]
