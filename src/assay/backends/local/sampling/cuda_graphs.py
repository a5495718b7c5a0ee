"""Decoding in steps of fixed shape that never wait for the device, so that CUDA can replay them as graphs.

A step feeds the tokens drawn last, draws the next ones, records them and notes which rows have finished: all on the
device, with the step number in device memory. What decides shapes is known to the host: the size of the batch, and how
much of the cache is read, which grows by doubling. For each such shape, a step runs a few times as it is, is then
captured, and from then on replayed. Every few steps the host checks which rows are alive, to return completions that
have ended, and to end the batch or move it into a smaller one.

All batches share one set of buffers, so graphs stay valid while no batch needs larger ones. Uncaptured, the same steps
run on any device, with the results of `sampler.decode`.

Shapes: P prompts, L prompt width, G continuations per prompt, C capacity, K key heads, D head width.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from assay.backends.local.decoder import Decoder, Prefix, extend, prefill
from assay.backends.local.sampling.draw_token import device_uniform, draw
from assay.backends.local.sampling.sampler import LOOK_EVERY, Layout, Record, living
from assay.errors import first_line
from assay.types import SamplingParams

logger = logging.getLogger(__name__)

FIRST_SPAN = 64
"""Cached tokens that attention reads at first; the span doubles whenever it is full."""
PROMPT_STEP = 64
"""Prompt widths are rounded up to a multiple, so that batches with other prompts have graphs already."""
SHRINK_BELOW = 0.5
"""Move to a smaller batch when it would have at most this share of the rows."""
EAGER_STEPS = 2
"""Steps of a shape that run as they are before it is captured: libraries choose kernels and make room in them."""
_EMPTY = np.zeros(0, np.int64)
NOTHING = Record(_EMPTY, _EMPTY, _EMPTY, np.zeros(0, np.float32))
"""What is handed over where no row has ended since the last look."""


@dataclass(frozen=True)
class Shape:
    """What buffers and graphs are made for."""

    prompts: int
    group: int
    width: int
    capacity: int


class Arena:
    """Memory for the largest batch so far: keys and values per layer, and the record of what was drawn."""

    def __init__(self, decoder: Decoder, shape: Shape, device: torch.device) -> None:
        heads = decoder.key_heads * decoder.head_dim
        self.prefix_size = shape.prompts * shape.width * heads
        self.own_size = shape.prompts * shape.group * shape.capacity * heads
        # The last column of the record takes what is not needed.
        self.record_size = shape.capacity * (shape.prompts * shape.group + 1)
        layers = range(len(decoder.layers))

        def pair(size: int) -> tuple[Tensor, Tensor]:
            keys = torch.zeros(size, dtype=decoder.attention_dtype, device=device)
            return keys, torch.zeros_like(keys)

        self.prefix = [pair(self.prefix_size) for _ in layers]
        self.own = [pair(self.own_size) for _ in layers]
        self.tokens = torch.zeros(self.record_size, dtype=torch.long, device=device)
        self.logprobs = torch.zeros(self.record_size, device=device)
        self.columns = torch.zeros((), dtype=torch.long, device=device)
        self.length = torch.zeros((), dtype=torch.long, device=device)

    def holds(self, other: Arena) -> bool:
        """Whether what fits into `other` fits into this one."""
        return all(getattr(self, n) >= getattr(other, n) for n in ("prefix_size", "own_size", "record_size"))


class Board:
    """A batch in flight: its rows, and its views of the arena."""

    def __init__(self, decoder: Decoder, arena: Arena, shape: Shape) -> None:
        self.shape, self.arena = shape, arena
        device, heads, width = arena.length.device, decoder.key_heads, decoder.head_dim
        keys = (shape.prompts, heads, width, shape.width)
        values = (shape.prompts, heads, shape.width, width)
        own = (shape.prompts, heads, shape.group, shape.capacity, width)
        self.lengths = torch.ones(shape.prompts, dtype=torch.long, device=device)
        self.bias = torch.zeros(shape.prompts, 1, 1, shape.width, device=device)
        self.prefix = Prefix(
            tuple(_view(k, keys) for k, _ in arena.prefix),
            tuple(_view(v, values) for _, v in arena.prefix),
            self.lengths,
            (),
            self.bias,
        )
        self.keys = [_view(k, own) for k, _ in arena.own]
        self.values = [_view(v, own) for _, v in arena.own]
        rows = (shape.prompts, shape.group)
        self.tokens, self.seeds, self.limits, self.origin = (
            torch.zeros(rows, dtype=torch.long, device=device) for _ in range(4)
        )
        self.alive = torch.zeros(rows, dtype=torch.bool, device=device)

    def hide_padding(self) -> None:
        """Make the bias follow from the lengths."""
        padded = torch.arange(self.shape.width, device=self.lengths.device) >= self.lengths[:, None]
        self.bias.copy_(torch.zeros(padded.shape, device=padded.device).masked_fill_(padded, -torch.inf)[:, None, None])


def _view(flat: Tensor, shape: tuple[int, ...]) -> Tensor:
    return flat[: int(np.prod(shape))].view(shape)


class StaticCache:
    """The first `span` places of a board's cache; how many are filled is known to the device alone."""

    def __init__(self, board: Board, span: int) -> None:
        self._board = board
        self._span = span

    @property
    def length(self) -> Tensor:
        """See `decoder.Cache`."""
        return self._board.arena.length

    def bias(self, prefix: Prefix, new: int) -> Tensor:
        """See `decoder.Cache`; `new` is 1."""
        assert new == 1 and prefix.bias is not None
        empty = torch.arange(self._span, device=self.length.device) > self.length
        own = torch.zeros(self._span, device=self.length.device).masked_fill_(empty, -torch.inf)
        return torch.cat([prefix.bias, own.expand(*prefix.bias.shape[:3], -1)], dim=-1)[:, :, None, None]

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """See `decoder.Cache`."""
        place = self.length.view(1)
        found = []
        for store, new in ((self._board.keys, k), (self._board.values, v)):
            store[layer].index_copy_(3, place, new.transpose(3, 4))
            found.append(store[layer][..., : self._span, :].transpose(3, 4))
        return found[0], found[1]

    def advance(self, new: int) -> None:
        """See `decoder.Cache`."""
        self.length.add_(new)


class StaticDecode:
    """A `sampler.Decode` over buffers of fixed size."""

    def __init__(self, decoder: Decoder, head: Callable[[Tensor], Tensor], device: torch.device, capture: bool) -> None:
        """`capture` replays steps as CUDA graphs."""
        self._decoder = decoder
        self._head = head
        self._device = device
        self._capture = capture
        self._arena: Arena | None = None
        self._boards: dict[Shape, Board] = {}
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self._runs: Counter[Hashable] = Counter()
        self._stops: dict[tuple[int, ...], Tensor] = {}
        """Stop tokens on the device, kept because graphs read them."""

    def __call__(self, layout: Layout, params: SamplingParams) -> Iterator[Record]:
        """See `sampler.Decode`."""
        prompts, group = layout.alive.shape
        most = int(layout.limits.max())
        capacity = _up(most, FIRST_SPAN) if most > FIRST_SPAN else most
        shape = Shape(_rounded(prompts), group, _up(layout.tokens.shape[1], PROMPT_STEP), capacity)
        if params.stop not in self._stops:
            self._stops[params.stop] = torch.tensor(params.stop, dtype=torch.long, device=self._device)
        stop = self._stops[params.stop]
        board = self._start(shape, layout, params, stop)
        columns, living_rows = shape.prompts * group + 1, int(layout.alive.sum())
        taken, given = 1, 0
        while taken < most:
            if taken % LOOK_EVERY == 0:
                alive = board.alive.cpu()
                if (count := int(alive.sum())) < living_rows:
                    # Only what ended is waited for, so that nothing is copied while all rows go on.
                    yield self._record(columns, given, taken)
                    given, living_rows = taken, count
                else:
                    yield NOTHING
                if not count:
                    return
                board = self._shrunk(board, alive, taken)
            self._advance(board, min(_span(taken), board.shape.capacity), params, stop)
            taken += 1
        yield self._record(columns, given, taken)

    def _start(self, shape: Shape, layout: Layout, params: SamplingParams, stop: Tensor) -> Board:
        """Run the prompts, and draw the first token of every row."""
        lengths = layout.lengths.to(self._device)
        tokens = layout.tokens.to(self._device)
        last = torch.arange(len(lengths), device=self._device) * tokens.shape[1] + lengths - 1
        hidden, prefix = prefill(self._decoder, tokens, layout.lengths, last)
        board = self._board(shape)
        arena, count = board.arena, len(lengths)
        # Masked places are still multiplied, so a NaN in them would spread.
        for stores in (*arena.prefix, *arena.own):
            for store in stores:
                store.zero_()
        for index, (keys, values) in enumerate(zip(prefix.keys, prefix.values, strict=True)):
            board.prefix.keys[index][:count, :, :, : keys.shape[3]] = keys
            board.prefix.values[index][:count, :, : values.shape[2]] = values
        board.lengths.fill_(1)[:count] = lengths
        board.hide_padding()
        board.alive.zero_()[:count] = layout.alive.to(self._device)
        board.seeds[:count] = torch.from_numpy(layout.seeds.view(np.int64)).to(self._device)
        board.limits[:count] = layout.limits.to(self._device)
        board.origin.copy_(torch.arange(board.origin.numel()).view_as(board.origin))
        arena.tokens.fill_(-1)
        arena.columns.fill_(board.origin.numel() + 1)
        arena.length.zero_()
        logits = F.pad(self._head(hidden), (0, 0, 0, shape.prompts - count))
        self._draw(board, logits[:, None].expand(-1, shape.group, -1), params, stop)
        return board

    def _board(self, shape: Shape) -> Board:
        """The board of this shape. Where the arena is too small, a larger one takes its place and all graphs go."""
        if shape not in self._boards:
            # On the meta device nothing is allocated: this only asks for sizes.
            needed = Arena(self._decoder, shape, torch.device("meta"))
            if self._arena is None or not self._arena.holds(needed):
                self._graphs.clear()
                self._boards.clear()
                self._runs.clear()
                self._arena = None
                self._arena = Arena(self._decoder, shape, self._device)
            self._boards[shape] = Board(self._decoder, self._arena, shape)
        return self._boards[shape]

    def _advance(self, board: Board, span: int, params: SamplingParams, stop: Tensor) -> None:
        """One step: feed what was drawn last, draw the next tokens."""
        key = (board.shape, span, params.temperature, params.top_k, params.top_p, params.stop)
        graph = self._graphs.get(key)
        if graph is None and self._capture and self._runs[key] >= EAGER_STEPS:
            graph = self._captured(key, board, span, params, stop)
        if graph is not None:
            graph.replay()
            return
        self._runs[key] += 1
        self._step(board, span, params, stop)

    def _captured(
        self, key: Hashable, board: Board, span: int, params: SamplingParams, stop: Tensor
    ) -> torch.cuda.CUDAGraph | None:
        """The step as a graph; None, and no more attempts, where CUDA cannot capture it."""
        graph = torch.cuda.CUDAGraph()
        # Graphs run one at a time and leave nothing but what they wrote into the arena, so they share their memory.
        pool = next((other.pool() for other in self._graphs.values()), None)
        try:
            # Other threads may use CUDA meanwhile, for example a reward model.
            with torch.cuda.graph(graph, pool, capture_error_mode="thread_local"):
                self._step(board, span, params, stop)
        except RuntimeError as error:
            logger.warning(
                "A decoding step cannot be captured as a CUDA graph (%s), so sampling goes on without one, more "
                "slowly. Set local.cuda_graphs=False to skip the attempt.",
                first_line(error),
            )
            self._capture = False
            return None
        self._graphs[key] = graph
        return graph

    def _step(self, board: Board, span: int, params: SamplingParams, stop: Tensor) -> None:
        hidden = extend(self._decoder, board.prefix, board.tokens[:, :, None], StaticCache(board, span))
        self._draw(board, self._head(hidden[:, :, 0]), params, stop)

    def _draw(self, board: Board, logits: Tensor, params: SamplingParams, stop: Tensor) -> None:
        """Draw token number `arena.length` of every row from logits [P, G, V], record it, and note which rows go on."""
        arena = board.arena
        drawn, logprobs = draw(logits, device_uniform(board.seeds, arena.length), params)
        column = torch.where(board.alive, board.origin, arena.columns - 1)
        places = (arena.length * arena.columns + column).flatten()
        arena.tokens.index_copy_(0, places, drawn.flatten())
        arena.logprobs.index_copy_(0, places, logprobs.flatten())
        board.tokens.copy_(drawn)
        board.alive.logical_and_(board.limits > arena.length + 1)
        if len(stop):
            board.alive.logical_and_((drawn[..., None] != stop).all(-1))

    def _shrunk(self, board: Board, alive: Tensor, taken: int) -> Board:
        """The board, or a smaller one with all rows that are alive; `taken` tokens have been drawn."""
        held = int(alive.sum(1).max())
        prompts, columns = living(alive, held)
        count, old = len(prompts), board.shape
        shape = Shape(min(_rounded(count), old.prompts), min(_rounded(held), old.group), old.width, old.capacity)
        if shape.prompts * shape.group > SHRINK_BELOW * alive.numel():
            return board
        # Rows that only fill the shape repeat others and are not alive.
        rows = F.pad(prompts, (0, shape.prompts - count)).to(self._device)
        places = F.pad(columns, (0, shape.group - held, 0, shape.prompts - count)).to(self._device)
        real = F.pad(torch.ones(count, held, dtype=torch.bool), (0, shape.group - held, 0, shape.prompts - count))
        small = self._board(shape)
        heads = torch.arange(self._decoder.key_heads, device=self._device)
        chosen = rows[:, None, None], heads[None, :, None], places[:, None, :]
        # Both boards lie in the same memory: what is kept is copied out before it is put in its new place.
        for index in range(len(board.keys)):
            for source, target in ((board.keys, small.keys), (board.values, small.values)):
                kept = source[index][..., :taken, :][chosen]
                target[index].zero_()[..., :taken, :] = kept
            for before, after in ((board.prefix.keys, small.prefix.keys), (board.prefix.values, small.prefix.values)):
                after[index].copy_(before[index].index_select(0, rows))
        small.lengths.copy_(board.lengths.index_select(0, rows))
        small.hide_padding()
        for name in ("tokens", "seeds", "limits", "origin", "alive"):
            getattr(small, name).copy_(getattr(board, name)[rows[:, None], places])
        small.alive.logical_and_(real.to(self._device))
        return small

    def _record(self, columns: int, first: int, end: int) -> Record:
        """Steps `first` to `end` of the record, which has `columns` columns; what was never written holds -1."""
        assert self._arena is not None
        span = slice(first * columns, end * columns)
        tokens, logprobs = (flat[span].cpu().numpy() for flat in (self._arena.tokens, self._arena.logprobs))
        # The last column took what is not needed.
        rows = np.tile(np.append(np.arange(columns - 1), -1), end - first)
        steps = np.repeat(np.arange(first, end), columns)
        return Record(np.where(tokens >= 0, rows, -1), steps, tokens, logprobs)


def _up(number: int, step: int) -> int:
    """The next multiple of `step`."""
    return -(-number // step) * step


def _rounded(number: int) -> int:
    """The next number of the form 2^i or 3 * 2^i: few sizes, none more than half too large."""
    power = 1 << (number - 1).bit_length()
    return power * 3 // 4 if power >= 4 and number <= power * 3 // 4 else power


def _span(taken: int) -> int:
    """Places that hold `taken` tokens, by doubling."""
    span = FIRST_SPAN
    while span < taken:
        span *= 2
    return span
