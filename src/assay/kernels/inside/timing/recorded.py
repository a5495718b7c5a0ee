"""A recorded program as one side of a timed comparison, in a process that never runs host code of the candidate.

On a GPU its launches are replayed as one CUDA graph, or made one by one where they cannot be captured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from assay.kernels.inside.problem.values import tensors_in
from assay.kernels.inside.replay.operators import ForgedError
from assay.kernels.inside.replay.player import Choose, Machine, Manner, NoRoomError, Player
from assay.kernels.inside.timing.contestants import Launched, Seconds, captured
from assay.kernels.program.form import Launch, Variant
from assay.kernels.program.limits import ON_DEVICE
from assay.kernels.program.reading import Refusal, read
from assay.types import Json

MAX_PROGRAMS = 1 << 20
"""Instances of kernels in one call, where the interpreter is timed."""
_POISON = 0xFF


def recorded(text: str, header: Json, init_inputs: Sequence[torch.Tensor], seconds_of: Seconds) -> Recorded:
    """The program of a job.

    Raises:
        ForgedError: it is not one that may be run.
        Exception: whatever its operations and kernels raise while it is built.
    """
    program = read(text.encode("utf-8", "replace"), ON_DEVICE)
    if isinstance(program, Refusal):
        raise ForgedError(program.reason)
    return Recorded(Player(program, _machine(header["device"]), init_inputs, header["weight_seed"]), seconds_of)


def _machine(device: str) -> Machine:
    if device == "cuda":
        from assay.kernels.inside.replay.on_device import OnDevice

        return OnDevice("cuda", lambda: None)  # whoever times a call waits for it
    from assay.kernels.inside.replay.interpreted import Interpreted
    from assay.kernels.inside.triton import interpreter

    interpreter.install()
    return Interpreted(MAX_PROGRAMS, follows=False)


class Recorded:
    """A recorded program, played on a machine that does not wait for its launches."""

    def __init__(self, player: Player, seconds_of: Seconds) -> None:
        self.launched: Launched = "one by one"
        self._player = player
        self._choose = tuned(seconds_of)
        self._inputs: list[torch.Tensor] = []
        self._ready = False
        self._replay: Callable[[], None] | None = None

    def prepare(self, inputs: Sequence[Any]) -> None:
        """Memory as it is when a call begins: fresh storages poisoned, parameters restored, inputs in their windows."""
        self._inputs = tensors_in(inputs)
        self._player.prepare(self._inputs, _POISON)

    def call(self) -> Any:
        """The outputs of forward. The first call compiles, tunes and captures."""
        if not self._ready:
            self._ready = True
            self._forward()
            self._player.prepare(self._inputs, _POISON)
            self._replay = captured(self._forward)
            self.launched = "cuda graph" if self._replay else "one by one"
            self._player.prepare(self._inputs, _POISON)
        (self._replay or self._forward)()
        return [self._player.memory.tensor(window) for window in self._player.program.outputs]

    def _forward(self) -> None:
        self._player.forward(Manner(in_order=True, follow=False), self._choose)


def tuned(seconds_of: Callable[[Callable[[], None]], float]) -> Choose:
    """The fastest variant of each launch, found at its first run as Triton's autotuner finds it: each is launched once
    to be compiled and once to be timed. Then the choice stands. What tuning does to memory is the caller's affair.

    Args:
        seconds_of: Times a call.
    """
    chosen: dict[int, Variant] = {}

    def choose(launch: Launch, attempt: Callable[[Variant], None]) -> Sequence[Variant]:
        if id(launch) not in chosen:
            chosen[id(launch)] = min(launch.variants, key=lambda variant: _seconds(attempt, variant, seconds_of))
        return [chosen[id(launch)]]

    return choose


def _seconds(
    attempt: Callable[[Variant], None], variant: Variant, seconds_of: Callable[[Callable[[], None]], float]
) -> float:
    """How long a variant takes; infinity where there is no room for it."""
    try:
        attempt(variant)
        return seconds_of(partial(attempt, variant))
    except NoRoomError:
        return math.inf
