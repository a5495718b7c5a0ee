"""Whose socket, lock or process it is: processes share a judge with others of the same user, and with nobody else.

In a folder that several users write to, anyone can put a socket in place first, and would be sent every prompt and
believed every reply.
"""

from __future__ import annotations

import os
import socket
import struct

_CREDENTIALS = struct.Struct("3i")
"""pid, user, group, as Linux writes them."""


def user_at_other_end(descriptor: int) -> int | None:
    """The user of the process at the other end of a Unix socket; None where this platform does not say."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return None
    with socket.socket(fileno=os.dup(descriptor)) as end:
        user: int = _CREDENTIALS.unpack(end.getsockopt(socket.SOL_SOCKET, option, _CREDENTIALS.size))[1]
    return user


def is_foreign(user: int | None) -> bool:
    """Whether something belongs to another user than this process."""
    return user is not None and user != os.geteuid()
