"""The renderer that a setting names, or the one that a tokenizer asks for."""

from __future__ import annotations

from typing import Any

from assay.backends.base import Tokenizer
from assay.envs.base import BY_TEMPLATE, RENDERER
from assay.envs.chat import AUTO, ChatConfig
from assay.errors import ConfigError
from assay.plugins import calling, find
from assay.rollouts.renderers.base import Renderer
from assay.rollouts.renderers.chat import ChatRenderer, template_of

NEEDED = ("stop", "rewrites", "start", "extend", "completion", "text", "read", "said", "record", "describe")
"""What a renderer has."""


def chosen(tokenizer: Any) -> str:
    """What `renderer_name=auto` stands for: `chat` where the tokenizer has a chat template, else `plain`."""
    return "chat" if template_of(tokenizer) else "plain"


def auto_renderer(tokenizer: Tokenizer) -> Renderer:
    """The renderer that `renderer_name=auto` stands for."""
    return make_renderer(AUTO, tokenizer)


def make_renderer(name: str, tokenizer: Tokenizer, chat: ChatConfig | None = None) -> Renderer:
    """The renderer that `renderer_name` names, over a tokenizer; `chat` is for the chat template alone.

    Raises:
        ConfigError: the renderer does not exist, its factory does not make one, or the tokenizer lacks what it needs.
    """
    name = chosen(tokenizer) if name == AUTO else name
    if name in BY_TEMPLATE:
        return ChatRenderer(tokenizer, chat)
    make = find(name, RENDERER, "renderer_name")
    with calling(f"renderer_name={name}"):
        made: Renderer = make(tokenizer)
    if lacking := [member for member in NEEDED if not hasattr(made, member)]:
        raise ConfigError(
            f"renderer_name={name} made a {type(made).__name__}, which is not a Renderer: it lacks "
            f"{', '.join(lacking)}. Let its class inherit from assay.rollouts.Renderer, which has all but stop, start, "
            "extend, completion and text."
        )
    return made
