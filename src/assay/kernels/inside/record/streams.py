"""Streams of a GPU as a recording sees them: which steps wait for which.

A program has one order, in which its steps are replayed. Steps on two streams have none, unless a stream waits for the
other or for an event of it. Where such steps come to the same bytes, the recording ends.
"""

from __future__ import annotations

import math
import operator
import weakref
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NoReturn

import torch

from assay.kernels.inside.record.host.addresses import is_gone
from assay.kernels.inside.record.reads import NotRecordableError
from assay.kernels.program.form import DTYPES
from assay.types import Json

_Clock = dict[int, int]  # number of a stream -> how many of its steps are over
_CHANCE = (
    "host code asks {0} of a GPU's work, which is chance there, and one program is recorded: leave it out, or wait "
    "with synchronize()"
)
_REUSED = (
    "{0} memory that may be that of a tensor that is gone, while another stream still uses it: a GPU gives it away "
    "again at once. Keep the tensor until that stream was waited for, or call tensor.record_stream(stream)"
)
_UNDERWAY = (
    "the host reads or writes memory that a copy with non_blocking=True has yet to come to or to leave: wait with "
    "torch.cuda.synchronize(), or leave non_blocking out"
)
_EARLY = (
    "{0} on a stream that has not waited for its caller's, on which inputs, weights or the memory that is used may "
    "still be written: call stream.wait_stream(torch.cuda.current_stream()) first"
)
_LASTING = (
    "a stream of forward's own works on memory that is there in the next call, which may begin before that is done: "
    "call torch.cuda.current_stream().wait_stream(stream) before forward returns"
)
_known: weakref.WeakValueDictionary[int, Stream | Event] = weakref.WeakValueDictionary()
"""All streams and events that there are, by id: a stream's hash tells of its handle."""


class _Handle:
    """What says another thing of itself in each run."""

    def _refused(self, *_: object) -> NoReturn:
        raise NotRecordableError("what a stream or an event says of itself is another thing in each run: leave it out")

    __repr__ = __str__ = __reduce_ex__ = __cuda_stream__ = _refused

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self._refused()


class Stream(_Handle):
    """A stream that knows for which steps of others it waited."""

    device, device_index = torch.device("cuda", 0), 0
    several = False
    """Whether there ever was one beside the caller's."""

    def __init__(self, device: Any = None, priority: int = 0) -> None:
        gpu_named(device)
        Stream.several = len(_known) > 1
        _known[id(self)] = self
        self._priority = operator.index(priority)
        if self._priority > 0:
            raise RuntimeError(f"Expected cuda stream priority to be less than or equal to 0, got {priority}")
        self.clock: _Clock = {}
        self._before: list[Stream] = []

    def __enter__(self) -> Stream:
        self._before.append(order.current)
        order.current = self
        return self

    def __exit__(self, *_: object) -> None:
        order.current = self._before.pop()

    @property
    def priority(self) -> int:
        """That which it was given, if that is the least one: others are mapped to those that a GPU has."""
        if self._priority:
            raise NotRecordableError("the priority that a stream has is another one on each kind of GPU")
        return 0

    def __eq__(self, other: object) -> bool:
        if self is other or not isinstance(other, Stream):
            return self is other
        ours = [id(each) in order.known for each in (self, other)]
        if all(ours):
            return True
        if not any(ours):
            raise NotRecordableError(
                "two streams of one's own may be one: PyTorch has 32 and gives them out in turn. Compare with "
                "torch.cuda.default_stream(), or remember which is which"
            )
        return False

    def __hash__(self) -> int:
        return hash((self.cuda_stream, self.device))

    @property
    def cuda_stream(self) -> int:
        """Its handle, which is known of the default stream alone."""
        if id(self) not in order.known:
            raise NotRecordableError("the handle of a stream of one's own is another one in each run")
        return 0

    stream_id = cuda_stream

    def query(self) -> bool:
        """Whether its work is done: by chance, on a GPU."""
        raise NotRecordableError(_CHANCE.format("query()"))

    def synchronize(self) -> None:
        """The host waits for it."""
        order.host_waits(order.clock_of(self))

    def wait_stream(self, stream: Any) -> None:
        """What follows here comes after what is on another stream."""
        self.wait_event(stream.record_event())

    def wait_event(self, event: Any) -> None:
        """What follows here comes after an event."""
        event.wait(self)

    def record_event(self, event: Any = None) -> Event:
        """An event that comes after what is here so far."""
        made = Event() if event is None else event
        made.record(self)
        return made


class Event(_Handle):
    """A point of a stream."""

    def __init__(
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, external: bool = False
    ) -> None:
        if interprocess or external:
            raise NotRecordableError("an event for other processes or for graphs: a program has neither")
        _known[id(self)] = self
        self.clock: _Clock = {}

    def record(self, stream: Any = None) -> None:
        """It comes after what is on a stream so far."""
        self.clock = order.clock_of(stream_or_current(stream))

    def wait(self, stream: Any = None) -> None:
        """What follows on a stream comes after it."""
        _merge(stream_or_current(stream).clock, self.clock)

    def query(self) -> bool:
        """Whether it has happened: by chance, on a GPU."""
        raise NotRecordableError(_CHANCE.format("query()"))

    def synchronize(self) -> None:
        """The host waits for it."""
        order.host_waits(self.clock)

    def elapsed_time(self, other: Any) -> float:
        """Nothing is timed here."""
        raise NotRecordableError(_CHANCE.format("elapsed_time()"))


class _Order:
    """The steps of one call of forward, each on its stream."""

    def __init__(self) -> None:
        self.default = self.current = Stream()  # the caller's
        self.named = Stream()  # `default_stream`
        self._pending: dict[int, int] = {}  # memory of the host -> stream of a copy that an earlier call left
        self._copies: dict[int, tuple[int, int]] = {}
        self._host: _Clock = {}
        self.known = {id(self.default), id(self.named)}
        self.begin(())

    def begin(self, unchanged: Collection[int]) -> None:
        """A call begins; all that was before is over. `unchanged`: storages that a call only reads."""
        self._pending |= {at: me for at, (me, count) in self._copies.items() if count > self._host.get(me, 0)}
        for found in _known.values():  # what was waited for in an earlier call says nothing of this one
            found.clock = {}
        self.current, self._unchanged = self.default, frozenset(unchanged)
        self._host = {}
        self._counts: _Clock = {id(self.default): 1}  # the caller's own work before
        self._streams: dict[int, Stream] = {}
        """Held, so that none comes back as another one."""
        self._steps: list[tuple[int, int, Json]] = []
        self._fault: NotRecordableError | None = None
        self._made: dict[int, tuple[torch.UntypedStorage, Stream]] = {}
        """Memory that this call made, and on which stream."""
        self._uses: dict[int, _Clock] = {}
        """Of each such, the last step of each stream that came to it."""
        self._alive: set[int] = set()
        """Those of which a tensor is left, as far as is known."""
        self._foreign: set[int] = set()
        """Those to which another stream came than that on which they were made."""
        self._debts: _Clock = {}
        """Up to which step of a stream memory of tensors that are gone was used."""
        self._owed: dict[int, int] = {}
        """The same of the stream of each, as it was when the memory was made, which may be that of such a tensor."""
        self._safe: set[tuple[int, int]] = set()
        """Memory and stream, where the one waits for the other before it is given away again."""
        self._copies = {}
        """Memory of the host -> stream and number of the copy that the host did not wait for."""
        self._lasting: list[tuple[int, int]] = []  # steps of other streams on memory that is there in later calls

    def clock_of(self, stream: Stream) -> _Clock:
        """What is over once all on a stream is."""
        number = id(stream)
        return {**stream.clock, number: self._counts.get(number, 0)}

    def host_waits(self, clock: _Clock) -> None:
        """What follows, on whatever stream, comes later."""
        _merge(self._host, clock)
        self._pending = {place: me for place, me in self._pending.items() if me not in clock}

    def host_waits_for_all(self) -> None:
        """`torch.cuda.synchronize`."""
        self.host_waits(self._counts)
        self._pending = {}

    def made(self, storage: torch.UntypedStorage) -> None:
        """Memory is made on the current stream. Raises what `add` does where it may be that of one that is gone."""
        self._check_gone("this call makes")
        # On one stream memory may be given away at any time, and to look each time would take quadratic time.
        for place in [place for place in self._alive if is_gone(self._made[place][0])] if Stream.several else ():
            self._alive.discard(place)
            owner = id(self._made[place][1])
            self._debts[owner] = max(self._debts.get(owner, 0), self._uses.get(place, {}).get(owner, 0))
        self._pending.pop(storage._cdata, None)
        self._owed[storage._cdata] = self._debts.get(id(self.current), 0)
        self._made[storage._cdata] = storage, self.current
        self._alive.add(storage._cdata)

    def _check_gone(self, what: str) -> None:
        known = {**self.current.clock}
        _merge(known, self._host)
        for place in self._foreign:
            storage, owner = self._made[place]
            uses = self._uses.get(place, {}).items() if owner is self.current else ()
            late = (me for me, count in uses if me != id(owner) and count > known.get(me, 0))
            if any((place, me) not in self._safe for me in late) and is_gone(storage):
                self._fault = self._fault or NotRecordableError(_REUSED.format(what))
                raise self._fault

    def recorded(self, place: int, stream: Any) -> None:
        """`Tensor.record_stream`."""
        self._safe.add((place, id(stream)))

    def copies(self, place: int) -> None:
        """The last step copies to or from memory of the host, which does not wait for it."""
        self._copies[place] = id(self.current), self._counts.get(id(self.current), 0)

    def on_host(self, place: int) -> None:
        """The host itself comes to memory. Raises what `add` does, where a copy may still do so too."""
        stream, count = self._copies.get(place, (0, 0))
        if count > self._host.get(stream, 0) or place in self._pending:
            self._fault = self._fault or NotRecordableError(_UNDERWAY)
            raise self._fault

    def add(self, step: Json, held: Sequence[torch.UntypedStorage] = ()) -> None:
        """Take the next step into the account.

        Args:
            step: As it is recorded.
            held: The storages that its windows number.

        Raises:
            NotRecordableError: a step on another stream touches the same bytes in no order with it.
        """
        stream, me = self.current, id(self.current)
        self._streams[me] = stream
        _merge(stream.clock, self._host)
        if stream is not self.default and not stream.clock.get(id(self.default)):
            self._fault = self._fault or NotRecordableError(_EARLY.format(f"line {step['line']} works"))
            raise self._fault
        if len(self._streams) > 1:
            self._look(me, stream.clock, step)
        self._counts[me] = self._counts.get(me, 0) + 1
        self._steps.append((me, self._counts[me], step))
        for (storage, *_), _ in _windows(step) if held else ():
            self._use(held[storage]._cdata, me, stream.clock)
            if stream is not self.default and storage not in self._unchanged and held[storage]._cdata not in self._made:
                self._lasting.append((me, self._counts[me]))

    def _use(self, place: int, me: int, clock: _Clock) -> None:
        """A step of a stream comes to memory."""
        self._uses.setdefault(place, {})[me] = self._counts[me]
        owner = id(self._made[place][1]) if place in self._made else me
        if owner != me:
            self._foreign.add(place)
        if owner != me and self._owed[place] > clock.get(owner, 0):
            self._fault = self._fault or NotRecordableError(_REUSED.format("a stream comes to"))
            raise self._fault

    def end(self, outputs: list[Json]) -> None:
        """A call is over, and its caller reads its outputs. Raises what `add` does, also what a candidate caught."""
        if self._fault is not None:
            raise self._fault
        if self.current is not self.default:
            raise NotRecordableError("forward leaves another stream current than its caller's: use torch.cuda.stream()")
        self._check_gone("after forward its caller makes")
        self.add({"args": [{"window": window} for window in outputs], "outs": [], "line": 0})
        known = {**self.current.clock}
        _merge(known, self._host)
        if any(number > known.get(me, 0) for me, number in self._lasting):
            raise NotRecordableError(_LASTING)

    def _look(self, me: int, clock: _Clock, step: Json) -> None:
        for stream, number, other in self._steps:
            if stream != me and number > clock.get(stream, 0) and self._meet(step, other):
                what = f"line {step['line']} comes" if step["line"] else "the caller of forward comes"
                self._fault = self._fault or NotRecordableError(
                    f"{what} to memory that line {other['line']} comes to on another stream, and neither of the two "
                    "streams waits for the other: call wait_stream() or wait_event() between them, or use one stream"
                )
                raise self._fault

    def _meet(self, one: Json, other: Json) -> bool:
        found = [list(_windows(step)) for step in (one, other)]
        return any(
            (writes or wrote) and self._overlap(window, its) for window, writes in found[0] for its, wrote in found[1]
        )

    def _overlap(self, one: Json, other: Json) -> bool:
        if one[0] != other[0] or one[0] in self._unchanged:
            return False
        (start, end), (first, last) = _bytes(one), _bytes(other)
        return bool(start < last and first < end)


def gpu_named(device: Any) -> int:
    """The number of the GPU that host code names in torch.cuda; of the current one, where it names none.

    Raises:
        ValueError, RuntimeError: there is no such GPU, as PyTorch raises it.
    """
    if device is None or (type(device) is int and device < 0):
        return 0
    found = torch.device("cuda", device) if type(device) is int else torch.device(device)
    if found.type != "cuda":
        raise ValueError(f"Expected a cuda device, but got: {device}")
    if found.index:
        raise RuntimeError(f"CUDA error: invalid device ordinal: {device} is named, and there is one GPU, cuda:0")
    return 0


def _merge(clock: _Clock, other: _Clock) -> None:
    for stream, count in other.items():
        clock[stream] = max(count, clock.get(stream, 0))


def _windows(step: Json) -> Iterator[tuple[Json, bool]]:
    """The windows of a step, and whether it may write there: an operator writes its results alone."""
    for variant in step.get("variants", ()):
        for value in variant["args"].values():  # whose names are the kernel's own
            yield from ((window, True) for window in _windows_in(value))
        for operation in variant.get("before", ()):
            yield from _windows(operation)
    yield from ((window, True) for window in step.get("outs", ()))
    for value in (*step.get("args", ()), *step.get("kwargs", {}).values()):
        yield from ((window, False) for window in _windows_in(value))
    for operations in step.get("tuning", ()):
        for operation in operations:
            yield from _windows(operation)


def _windows_in(value: Json) -> Iterator[Json]:
    if isinstance(value, list | tuple):
        for part in value:
            yield from _windows_in(part)
    elif isinstance(value, dict) and "window" in value:
        yield value["window"]
    elif isinstance(value, dict) and "descriptor" in value:
        yield value["descriptor"][0]


def _bytes(window: Json) -> tuple[int, int]:
    """From where to where a window reaches in its storage; to where it begins, if it is empty."""
    _, dtype, size, stride, offset = window
    last = sum((length - 1) * step for length, step in zip(size, stride, strict=True))
    return offset * DTYPES[dtype], (offset + last + 1) * DTYPES[dtype] if math.prod(size) else 0


def stream_or_current(given: Any) -> Stream:
    """A stream that host code gives; the current one for None. Raises TypeError for anything else."""
    if given is not None and not isinstance(given, Stream):
        raise TypeError(f"a {type(given).__name__:.80} where a stream belongs")
    return order.current if given is None else given


order = _Order()
