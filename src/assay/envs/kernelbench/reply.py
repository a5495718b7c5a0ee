"""What a model's reply to a kernel problem holds: its thought and its kernel, or why there is no kernel.

`assay.kernels.source_text` reads replies; here they are bounded, and told apart by whether the prompt had opened a
thought.
"""

from __future__ import annotations

from dataclasses import dataclass

from assay.kernels.source_text import parse_reply

MAX_REPLY_CHARACTERS = 1_000_000
"""Of a longer reply only the end is read: the kernel that counts is the last one."""


@dataclass(frozen=True, slots=True)
class KernelReply:
    """A reply that was read. `kernel` is empty unless `format_ok`; `message` then says why."""

    thought: str
    kernel: str
    format_ok: bool
    fault: str = ""
    message: str = ""


def read_reply(text: str, thinking_opened: bool = False) -> KernelReply:
    """Read a reply.

    Args:
        text: the completion as sampled, without its prompt.
        thinking_opened: whether the prompt ended inside a thought.
    """
    parsed = parse_reply(text[-MAX_REPLY_CHARACTERS:], thinking_opened)
    kernel = parsed.code if parsed.format_ok else ""
    return KernelReply(parsed.thought, kernel, parsed.format_ok, parsed.fault or "", parsed.message)
