"""How the elements of a storage came to what they are in a launch.

A store of the bytes that are there does no harm, wherever it comes: as long as they are what every other one stores,
too. Where an element has been something else in between, a GPU may make the store while it still is.
"""

from __future__ import annotations

from typing import Any

import numpy as np


class History:
    """Of one storage, since a launch began."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._written: Any = None
        """Which elements were written."""
        self._changed_again: Any = None
        """Which of them were changed once they were written, or by an atomic operation."""

    def was_written(self, slots: Any) -> bool:
        """Whether some elements were."""
        return self._written is not None and bool(self._written[slots].any())

    def stored(self, slots: Any, changed: Any) -> Any:
        """Note a store. Which of some elements it makes others, or may at another time.

        Args:
            slots: Numbers of the elements.
            changed: Which of them it makes others; None for one that meets nothing, to elements of which none was
                written. So is the result then.
        """
        again = self._written[slots] if changed is not None and self._written is not None else False
        self._wrote(slots)
        if changed is None:
            return None
        self._changed_again[slots] |= again & changed
        return changed | self._changed_again[slots]

    def combined(self, slots: Any) -> None:
        """Note an atomic operation."""
        self._wrote(slots)
        self._changed_again[slots] = True

    def _wrote(self, slots: Any) -> None:
        if self._written is None:
            self._written, self._changed_again = (np.zeros(self._slots, dtype=bool) for _ in range(2))
        self._written[slots] = True
