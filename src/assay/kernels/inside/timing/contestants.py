"""What is timed: a module's model, or a recorded program (`recorded`). Both are prepared before the clock runs, and
then called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

import torch

from assay.kernels.inside.problem.values import tensors_in
from assay.kernels.inside.tensors import write

Launched = Literal["host code", "one by one", "cuda graph"]
"""How kernels are launched in a timed call."""
Seconds = Callable[[Callable[[], Any]], float]
"""Times a call."""


class Contestant(Protocol):
    """One side of a comparison."""

    @property
    def launched(self) -> Launched:
        """How its kernels are launched."""
        ...

    def prepare(self, inputs: Sequence[Any]) -> None:
        """Take the arguments of the next call; nothing of it is done yet."""
        ...

    def call(self) -> Any:
        """The call that is timed; the outputs are good until the next one is prepared."""
        ...


class Module:
    """`ModelNew` of a candidate, or `Model` of a reference; `graph` replays the model's launches, where that can be."""

    def __init__(self, model: Any, *, graph: bool = False) -> None:
        self.launched: Launched = "host code"
        self._model, self._wants_graph = model, graph
        self._inputs: list[Any] = []
        self._replay: Callable[[], None] | None = None
        self._value: Any = None

    def prepare(self, inputs: Sequence[Any]) -> None:
        """Keep the arguments, or put them where the graph reads them."""
        if self._replay is None:
            self._inputs = list(inputs)
            return
        for place, given in zip(tensors_in(self._inputs), tensors_in(inputs), strict=True):
            write(place, given)

    def call(self) -> Any:
        """What forward returns."""
        if self._wants_graph:
            self._wants_graph = False
            self._forward()  # compiles, and sets up what cannot be set up during a capture
            self._replay = captured(self._forward)
            self.launched = "cuda graph" if self._replay else "host code"
        (self._replay or self._forward)()
        return self._value

    def _forward(self) -> None:
        self._value = self._model(*self._inputs)


def captured(call: Callable[[], None]) -> Callable[[], None] | None:
    """The launches of a call as a CUDA graph; None where there is no GPU, or where they cannot be captured: a call that
    waits for the device, or copies to and from the host."""
    if not torch.cuda.is_available():
        return None
    stream = torch.cuda.current_stream()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            call()
    except RuntimeError:
        torch.cuda.set_stream(stream)  # a capture that fails at its end does not leave its own
        torch.cuda.synchronize()
        return None
    return graph.replay
