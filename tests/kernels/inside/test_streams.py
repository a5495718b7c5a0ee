"""Steps of a recording on several streams: in order where one waits, refused where they meet without."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("torch")

from assay.kernels.inside.pretend_cuda import UsingStream
from assay.kernels.inside.record.reads import NotRecordableError
from assay.kernels.inside.record.streams import Event, Stream, order


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    order.begin({0})
    yield
    order.begin(())


def window(storage: int, start: int = 0, length: int = 8) -> list[Any]:
    return [storage, "float32", [length], [1], start]


def launch(*windows: list[Any]) -> None:
    order.add(
        {"launch": 0, "variants": [{"args": {str(at): {"window": w} for at, w in enumerate(windows)}}], "line": 1}
    )


def add(read: list[Any], written: list[Any]) -> None:
    order.add({"op": "neg", "args": [{"window": read}], "kwargs": {}, "outs": [written], "line": 2})


def nothing(side: Stream) -> None:
    """No wait at all."""


def event(side: Stream) -> None:
    done = Event()
    done.record(side)
    order.default.wait_event(done)


def by_a_third(side: Stream) -> None:
    third = Stream()
    third.wait_stream(side)
    order.default.wait_event(third.record_event())


WAITS: dict[str, tuple[Callable[[Stream], None], bool]] = {
    "nothing": (nothing, False),
    "the other waits": (lambda side: side.wait_stream(order.default), False),
    "the stream": (lambda side: order.default.wait_stream(side), True),
    "an event": (event, True),
    "an event that was never recorded": (lambda side: Event().wait(), False),
    "a third stream": (by_a_third, True),
    "the host": (lambda side: side.synchronize(), True),
    "the host for all": (lambda side: order.host_waits_for_all(), True),
}


@pytest.mark.parametrize("way", WAITS)
def test_a_stream_must_wait_for_what_it_needs(way: str) -> None:
    wait, orders = WAITS[way]
    side = Stream()
    side.wait_stream(order.default)
    with UsingStream(side):
        launch(window(0), window(1))
    wait(side)
    if orders:
        launch(window(0), window(1))
        order.end([window(1)])
        return
    with pytest.raises(NotRecordableError, match="neither of the two streams waits"):
        launch(window(0), window(1))
    with pytest.raises(NotRecordableError):  # whoever caught the first
        order.end([])


def test_what_does_not_meet_needs_no_order() -> None:
    side = Stream()
    add(window(0), window(1))
    side.wait_stream(order.default)
    with side:
        launch(window(0), window(2, 0, 4))
        add(window(1), window(3))
    launch(window(0), window(2, 4, 4))
    add(window(1), window(4))
    with pytest.raises(NotRecordableError, match="the caller of forward"):
        order.end([window(2)])


def test_a_stream_waits_for_its_callers_first() -> None:
    with pytest.raises(NotRecordableError, match="has not waited for its caller's"), Stream():
        launch(window(0), window(1))


def test_what_an_earlier_call_waited_for_says_nothing_of_this_one() -> None:
    side, done = Stream(), Event()
    side.wait_stream(order.default)
    done.record(side)
    order.begin({0})
    with pytest.raises(NotRecordableError, match="has not waited"), side:
        launch(window(0), window(1))


def test_names_of_a_kernels_parameters_are_its_own() -> None:
    side = Stream()
    side.wait_stream(order.default)
    with side:
        order.add({"launch": 0, "variants": [{"args": {"window": 3, "outs": 4, "op": None}}], "line": 1})
    launch(window(0), window(1))


@pytest.mark.parametrize("asked", [Stream().query, Event().query, lambda: Event().elapsed_time(Event())])
def test_what_is_chance_on_a_gpu_is_not_answered(asked: Callable[[], object]) -> None:
    with pytest.raises(NotRecordableError, match="chance"):
        asked()
