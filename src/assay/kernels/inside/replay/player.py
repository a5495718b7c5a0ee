"""A program on real memory: set up once under a seed, then called on inputs, each call from the same start."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from assay.kernels.inside.replay import operators
from assay.kernels.inside.replay.accesses import Accesses
from assay.kernels.inside.replay.memory import Memory
from assay.kernels.inside.replay.rebuild import plain, rebuild
from assay.kernels.inside.triton import interpreter
from assay.kernels.program.form import Descriptor, Launch, Operation, Program, Step, Value, Variant, Window, windows_in

NO_KERNEL = -1


@dataclass(frozen=True, slots=True)
class Manner:
    """How one call is made. Who wrote the program must not know it."""

    poison: int = 0xFF
    """The byte that fresh memory is filled with: 255 makes NaN of floats and -1 of whole numbers."""
    skip: int = NO_KERNEL
    """A kernel whose launches are left out."""
    seed: int = 0
    """Of the order of programs, and of the configuration that an autotuned kernel runs with."""
    in_order: bool = False
    """Run the programs of a launch one after another instead."""
    follow: bool = True
    """Follow accesses: who wrote an output, and where programs race."""


@dataclass(frozen=True, slots=True)
class Account:
    """What one call did."""

    ledger: interpreter.Ledger
    races: Sequence[Mapping[str, Any]]
    unwritten: tuple[int, ...]
    """Of each output, elements that no kernel wrote last. Zeros where accesses were not followed."""


class Player:
    """One program under one seed of its weights."""

    def __init__(
        self, program: Program, init_inputs: Sequence[torch.Tensor], weight_seed: int, max_programs: int
    ) -> None:
        """Runs what happens at import and in the constructor; its random draws come from the seed.

        Raises:
            NotInLanguageError, ForgedError: the program cannot be run.
            Exception: whatever its operations and kernels raise.
        """
        self.program, self._max_programs = program, max_programs
        self._kernels = rebuild(program)
        self.memory = Memory(program)
        _fill_in(self.memory, program.init_inputs, init_inputs)
        manner = Manner(in_order=True, follow=False)
        # What is drawn at import has no counterpart in the reference, and must not know its seed.
        torch.default_generator.manual_seed(weight_seed ^ 0x5DEECE66D)
        self._run(program.module, manner)
        torch.default_generator.manual_seed(weight_seed)
        self._run(program.init, manner)
        self._start = {place: self.memory.raw[place].clone() for place in sorted(_lasting(program))}
        self._fresh = [place for place in range(len(program.storages)) if place not in self._start]

    def call(
        self, inputs: Sequence[torch.Tensor], manner: Manner, weights: Mapping[int, torch.Tensor] | None = None
    ) -> Account:
        """One call of forward; its outputs lie in `memory` then.

        Args:
            inputs: The tensors among its arguments.
            manner: How it is made.
            weights: Number of a parameter -> other values that it holds in this call.

        Raises:
            ForgedError: the program is not what it says.
            UnsupportedError, OutOfBoundsError: of the interpreter.
            Exception: whatever its operations and kernels raise.
        """
        memory = self.memory
        for place, content in self._start.items():
            memory.raw[place].copy_(content)
            memory.made[place].fill_(False)
        memory.fill(self._fresh, manner.poison)
        for number, value in (weights or {}).items():
            memory.tensor(self.program.params[number][1]).copy_(value)
        _fill_in(memory, self.program.inputs, inputs)
        ledger, races = self._run(self.program.forward, manner)
        unwritten = tuple(
            int((~memory.is_made(window)).sum()) if manner.follow else 0 for window in self.program.outputs
        )
        return Account(ledger, races, unwritten)

    def _run(self, steps: Sequence[Step], manner: Manner) -> tuple[interpreter.Ledger, list[dict[str, int | str]]]:
        chance = random.Random(manner.seed)
        accesses = Accesses(self.memory) if manner.follow else None
        ledger = interpreter.Ledger(
            self._max_programs, order=None if manner.in_order else random.Random(manner.seed), observer=accesses
        )
        with interpreter.recording(ledger):
            for step in steps:
                if isinstance(step, Operation):
                    operators.run(self.memory, step)
                else:
                    self._launch(step, chance.choice(step.variants), manner, accesses)
        if ledger.refusal is not None:
            raise ledger.refusal
        return ledger, accesses.races if accesses else []

    def _launch(self, launch: Launch, variant: Variant, manner: Manner, accesses: Accesses | None) -> None:
        for operation in variant.before:
            operators.run(self.memory, operation)
        if launch.kernel == manner.skip:
            return
        if accesses is not None:
            accesses.launch(self.program.kernels[launch.kernel].name)
        arguments = {name: self._argument(value) for name, value in variant.args}
        self._kernels[launch.kernel][variant.grid](**arguments, **dict(variant.options))

    def _argument(self, value: Value) -> Any:
        if isinstance(value, Window):
            return self.memory.tensor(value)
        if isinstance(value, Descriptor):
            base = self.memory.tensor(value.base)
            sizes = (list(part) for part in (value.shape, value.strides, value.block))
            return TensorDescriptor(base, *sizes, padding=value.padding)
        if isinstance(value, tuple):
            return tuple(self._argument(part) for part in value)
        return plain(value, self._kernels)


def _fill_in(memory: Memory, windows: Sequence[Window], tensors: Sequence[torch.Tensor]) -> None:
    if len(windows) != len(tensors):
        raise operators.ForgedError(f"the program takes {len(windows)} tensors and is given {len(tensors)}")
    for window, tensor in zip(windows, tensors, strict=True):
        place = memory.tensor(window)
        if place.shape != tensor.shape or place.dtype != tensor.dtype:
            raise operators.ForgedError(
                f"the program takes {window.dtype} {window.size}, "
                f"the problem gives {tensor.dtype} {tuple(tensor.shape)}"
            )
        place.copy_(tensor)


def _lasting(program: Program) -> set[int]:
    """Storages that hold something before forward is called."""
    found = {storage for storage, _ in program.constants}
    found |= {window.storage for window in (*program.init_inputs, *(window for _, window in program.params))}
    for step in (*program.module, *program.init):
        if isinstance(step, Launch):
            values = [value for variant in step.variants for _, value in variant.args]
            found |= {window.storage for value in values for window in windows_in(value)}
            made = [out for variant in step.variants for operation in variant.before for out in operation.outs]
            found |= {out.storage for out in made}
        else:
            found |= {out.storage for out in step.outs}
    return found
