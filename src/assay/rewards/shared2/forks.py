"""Files that a forked child must not hold open: a hub's death must be seen although its child lives."""

from __future__ import annotations

import os

_not_for_children: set[int] = set()


def keep_from_children(fd: int) -> None:
    """Take care that a forked child does not hold `fd` open."""
    _not_for_children.add(fd)


def forget_fd(fd: int) -> None:
    """Undo `keep_from_children`, before the number is used for another file."""
    _not_for_children.discard(fd)


def _cover_inherited() -> None:
    # Closed, the numbers would be given to other files, which inherited objects could then close by mistake.
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for fd in _not_for_children:
        os.dup2(nothing, fd, inheritable=False)
    os.close(nothing)
    _not_for_children.clear()


os.register_at_fork(after_in_child=_cover_inherited)
