"""The keys and values of rows that decode side by side, each at a length of its own, so that rows can join at any step.

Unlike in `decoder.ContinuationCache`, a row holds its prompt too: rows of one prompt have copies. In exchange nothing
ties rows together, and any of them can come and go.

Shapes: R rows, K key heads, C capacity, D head width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from assay.backends.local.decoder import Decoder, Prefix, extend

FIRST_ROWS, FIRST_CAPACITY = 8, 64
SHRINK_BELOW = 0.25
"""Give memory back when the rows in use fall under this share of those there is room for."""


class Board:
    """Rows in flight. A row that has ended is overwritten or moved away by `keep`."""

    def __init__(self, decoder: Decoder, device: torch.device) -> None:
        self._decoder = decoder
        self._device = device
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        self.lengths = torch.zeros(0, dtype=torch.long, device=device)
        """[R] cached tokens of each row."""
        self._span = 0

    def __len__(self) -> int:
        return len(self.lengths)

    def join(self, prefix: Prefix, rows: Sequence[int]) -> None:
        """Add rows behind prompts.

        Args:
            rows: for each new row, the prompt of `prefix` that it continues.
        """
        old, new = len(self), len(self) + len(rows)
        width = prefix.keys[0].shape[3]
        chosen = torch.tensor(rows, device=self._device)
        self._span = max(self._span, max(prefix.sizes[row] for row in rows))
        self._make_room(new, max(width, self._span + 1), prefix)
        for index, (keys, values) in enumerate(zip(prefix.keys, prefix.values, strict=True)):
            self._keys[index][old:new, :, :width] = keys.transpose(2, 3).index_select(0, chosen)
            self._values[index][old:new, :, :width] = values.index_select(0, chosen)
        self.lengths = torch.cat([self.lengths, prefix.lengths.index_select(0, chosen)])

    def keep(self, rows: Sequence[int]) -> None:
        """Keep these rows alone, in this order; cheapest where most of them stay in their places."""
        chosen = torch.tensor(rows, dtype=torch.long, device=self._device)
        count = len(rows)
        self.lengths = self.lengths.index_select(0, chosen)
        if not count:
            self._keys, self._values, self._span = [], [], 0
            return
        self._span = int(self.lengths.max())
        moved = [(new, old) for new, old in enumerate(rows) if new != old]
        to = torch.tensor([new for new, _ in moved], dtype=torch.long, device=self._device)
        source = torch.tensor([old for _, old in moved], dtype=torch.long, device=self._device)
        shrink = count <= SHRINK_BELOW * self._keys[0].shape[0] and self._keys[0].shape[0] > FIRST_ROWS
        for store in (self._keys, self._values):
            for index, old in enumerate(store):
                if shrink:
                    store[index] = _padded(old.index_select(0, chosen), max(FIRST_ROWS, count), old.shape[2])
                elif moved:
                    old.index_copy_(0, to, old.index_select(0, source))

    def scrub(self) -> None:
        """Clear what is not finite: places that are masked are still multiplied, so it would reach other rows."""
        for store in (*self._keys, *self._values):
            store.nan_to_num_(0.0, 0.0, 0.0)

    def advance(self, tokens: Tensor) -> Tensor:
        """Feed each row its last token [R]; final hidden states [R, E]."""
        self._span += 1
        self._make_room(len(self), self._span, None)
        cache = _Step(self._keys, self._values, self.lengths, self._span)
        hidden = extend(self._decoder, self._no_prefix(), tokens[:, None, None], cache)
        self.lengths = self.lengths + 1
        return hidden[:, 0, 0]

    def _no_prefix(self) -> Prefix:
        """What stands for prompts where rows hold theirs: nothing, behind which rows begin at their lengths."""
        heads, width = self._keys[0].shape[1], self._keys[0].shape[3]
        count = len(self)
        empty = self._keys[0].new_empty(count, heads, width, 0)
        layers = len(self._keys)
        return Prefix((empty,) * layers, (empty.transpose(2, 3),) * layers, self.lengths, (0,) * count, None)

    def _make_room(self, rows: int, capacity: int, prefix: Prefix | None) -> None:
        if not self._keys:
            assert prefix is not None
            heads, width = prefix.values[0].shape[1], prefix.values[0].shape[3]
            shape = (_doubled(FIRST_ROWS, rows), heads, _doubled(FIRST_CAPACITY, capacity), width)
            self._keys = [prefix.values[0].new_zeros(shape) for _ in prefix.keys]
            self._values = [torch.zeros_like(k) for k in self._keys]
            return
        held, room = self._keys[0].shape[0], self._keys[0].shape[2]
        if rows <= held and capacity <= room:
            return
        for store in (self._keys, self._values):
            for index, old in enumerate(store):
                store[index] = _padded(old, _doubled(held, rows), _doubled(room, capacity))


class _Step:
    """One step's view of the rows; see `decoder.Cache`."""

    def __init__(self, keys: list[Tensor], values: list[Tensor], lengths: Tensor, span: int) -> None:
        self._stores = (keys, values)
        self._span = span
        rows, (_, heads, capacity, self._width) = len(lengths), keys[0].shape
        begins = torch.arange(rows * heads, device=lengths.device).view(rows, heads) * capacity
        # Where each row's next token goes, among all places of all rows and heads.
        self._places = (begins + lengths[:, None]).flatten()
        hidden = torch.arange(span, device=lengths.device) > lengths[:, None]
        bias = torch.zeros(hidden.shape, device=lengths.device).masked_fill_(hidden, -torch.inf)
        self._bias = bias[:, None, None, None, None]

    @property
    def length(self) -> int:
        """Nothing lies between a row's own length, which stands in the prefix, and its next token."""
        return 0

    def bias(self, prefix: Prefix, new: int) -> Tensor | None:
        """See `decoder.Cache`; `new` is 1."""
        assert new == 1
        return self._bias

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """See `decoder.Cache`."""
        found = []
        for store, new in zip(self._stores, (k, v), strict=True):
            store[layer].view(-1, self._width).index_copy_(0, self._places, new.reshape(-1, self._width))
            found.append(store[layer][: len(new), :, None, : self._span].transpose(3, 4))
        return found[0], found[1]

    def advance(self, new: int) -> None:
        """See `decoder.Cache`; the board counts."""


def _padded(old: Tensor, rows: int, capacity: int) -> Tensor:
    new = old.new_zeros((rows, old.shape[1], capacity, old.shape[3]))
    count = min(rows, old.shape[0])
    new[:count, :, : old.shape[2]] = old[:count]
    return new


def _doubled(size: int, least: int) -> int:
    while size < least:
        size *= 2
    return size
