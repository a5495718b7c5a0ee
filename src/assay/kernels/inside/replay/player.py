"""A program on real memory: set up once under a seed, then called on inputs, each call from the same start.

Where kernels run is a `Machine`: `interpreted` (Triton's interpreter) or `on_device` (a GPU).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol

import torch
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from assay.kernels.inside.replay import operators
from assay.kernels.inside.replay.memory import Memory
from assay.kernels.inside.replay.outputs.written import Own, is_whole, written
from assay.kernels.inside.replay.state import Row, State, flows
from assay.kernels.inside.tensors import write
from assay.kernels.program.form import (
    Descriptor,
    Function,
    Launch,
    Name,
    Operation,
    Program,
    Step,
    Tuning,
    Value,
    Variant,
    Window,
    lasting,
    made_anew,
    of_earlier_calls,
)
from assay.types import Json

NO_KERNEL = -1
MOST_TRIED = 3
"""Launches that an autotuner tries before the one that counts."""


@dataclass(frozen=True, slots=True)
class Manner:
    """How one call is made. Who wrote the program must not know it."""

    poison: int = 0xFF
    """The byte that fresh memory is filled with: 255 makes NaN of floats and -1 of whole numbers."""
    skip: int = NO_KERNEL
    """A kernel whose launches are left out."""
    seed: int = 0
    """Of the order of programs, and of all else that is left to chance."""
    in_order: bool = False
    """Run the programs of a launch one after another instead, as far as none waits for a later one."""
    follow: bool = True
    """Follow accesses: who wrote an output, and where programs race."""
    restored: bool = True
    """From the same start as the first call. Otherwise it follows the last call: what lasts is as that one left it."""
    configurations: Sequence[int] = ()
    """The number of a variant for each launch of the program, in its order; empty for random ones."""
    bounded: bool = False
    """Give values error bounds: how far they may be from what a GPU has."""
    tuning: bool = False
    """Let autotuners try variants first, as they do at the first call on a GPU."""


@dataclass(frozen=True, slots=True)
class Account:
    """What one call did."""

    told: dict[str, Json]
    """What its `Run` says: `launches` by the kernel's name, and `races`."""
    unwritten: tuple[int, ...]
    """Of each output, elements that need a kernel and that none wrote last (`outputs.written`). Zeros where accesses
    were not followed."""
    partly: tuple[int, ...] = ()
    """Outputs that have elements that need no kernel beside those that kernels wrote."""
    inputs_changed: tuple[int, ...] = ()
    """Inputs that hold other bytes than they were given."""
    params_changed: tuple[str, ...] = ()
    """Parameters that hold other bytes than before, or in which kernels wrote."""
    left: tuple[Json, ...] = ()
    """What calls so far read of earlier ones and left otherwise (`state.Row`)."""


class CompilerError(Exception):
    """The compiler refused a kernel. `line`: of its launch in the submission; 0 where that is not known."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


class NoRoomError(CompilerError):
    """The same of one configuration, which an autotuner would pass over."""


class Run(Protocol):
    """Steps of a program under way."""

    def launch(self, launch: Launch, variant: Variant, arguments: dict[str, Any]) -> None:
        """Launch a kernel. Raises `NoRoomError` where an autotuner would try another configuration."""
        ...

    def try_out(self, launch: Launch, variant: Variant, arguments: dict[str, Any]) -> None:
        """Launch a kernel without counting it; it may be left out where the next launch would find no change."""
        ...

    def told(self) -> dict[str, Json]:
        """What is known of it once it is over: `launches` and `races`."""
        ...


class Machine(Protocol):
    """Where a program runs."""

    device: str
    """PyTorch's name of the device that storages are on."""
    follows: bool
    """Whether it can follow what kernels touch."""

    def build(self, program: Program) -> Sequence[Any]:
        """The kernels of a program, as they are handed to kernels; of a machine that `follows`, they say what they
        touch (`Rebuilt.touches`). Raises what is wrong with their text."""
        ...

    def running(self, memory: Memory, manner: Manner) -> AbstractContextManager[Run]:
        """Some steps are run in it. Leaving it waits for them, and raises what went wrong on the device."""
        ...

    def kind_of(self, error: Exception) -> Literal["error", "unsupported", "compile"]:
        """What an error of a call means."""
        ...


Choose = Callable[[Launch, Callable[[Variant], None]], Sequence[Variant]]
"""Which variants of a launch are tried, the first one first. It may launch some then and there, to see how they do."""


class Player:
    """One program under one seed of its weights."""

    def __init__(
        self, program: Program, machine: Machine, init_inputs: Sequence[torch.Tensor], weight_seed: int
    ) -> None:
        """Runs what happens at import and in the constructor; its random draws come from the seed, on the host.

        Raises:
            NotInLanguageError, ForgedError: the program cannot be run.
            Exception: whatever its operations and kernels raise.
        """
        self.program, self._machine = program, machine
        self._init_inputs, self._weight_seed = init_inputs, weight_seed
        self._kernels = machine.build(program)
        self._launches = {id(step): place for place, step in enumerate(_launches(program.steps))}
        self._tuned = any(len(step.variants) > 1 for step in _launches(program.steps))
        self._of_earlier_calls = of_earlier_calls(program)
        self._left_out: Collection[int] = ()
        """Steps of forward that the call under way does not run, by id."""
        places = {True: program.once, False: program.unchanged}
        self._left_out_after = {key: {id(program.forward[place]) for place in found} for key, found in places.items()}
        """Those of a call that follows another one, by whether a weight has changed."""
        self._made_anew = made_anew(program)
        self._tuned_start = any(len(step.variants) > 1 for step in _launches((*program.module, *program.init)))
        self._set_up(Manner(in_order=True, follow=False))

    def _set_up(self, manner: Manner) -> None:
        program = self.program
        self.memory = Memory(program, self._machine.device, marked=self._machine.follows)
        _fill_in(self.memory, program.init_inputs, self._init_inputs)
        # What is drawn at import has no counterpart in the reference, and must not know its seed.
        torch.default_generator.manual_seed(self._weight_seed ^ 0x5DEECE66D)
        self._run(program.module, manner)
        torch.default_generator.manual_seed(self._weight_seed)
        self._run(program.init, manner)
        self._start = {place: self.memory.raw[place].clone() for place in sorted(lasting(program))}
        self._given = {window.storage for window in program.inputs if is_whole(window, program)} - self._start.keys()
        known = self._start.keys() | self._given
        self._fresh = [place for place in range(len(program.storages)) if place not in known]
        self._moved: set[int] = set()
        self._row = Row()

    def call(
        self,
        inputs: Sequence[torch.Tensor],
        manner: Manner,
        weights: Mapping[int, torch.Tensor] | None = None,
        own: Mapping[int, Own] | None = None,
    ) -> Account:
        """One call of forward; its outputs lie in `memory` then.

        Args:
            inputs: The tensors among its arguments.
            manner: How it is made.
            weights: Number of a parameter, or of a buffer after those -> other values that it holds in this call.
            own: Number of an output -> how the reference makes it in the memory of an input.

        Raises:
            ForgedError: the program is not what it says.
            UnsupportedError, OutOfBoundsError: of the interpreter.
            Exception: whatever its operations and kernels raise.
        """
        if self._tuned_start and manner.configurations and manner.restored:
            self._set_up(
                Manner(in_order=True, follow=False, configurations=manner.configurations, tuning=manner.tuning)
            )
        changed = bool(weights or self._moved)
        if manner.restored:
            self.prepare(inputs, manner.poison, weights)
        else:
            self._left_out = self._left_out_after[changed]
            self._go_on(inputs, manner.poison, weights or {})
        params = [_bytes_of(self.memory.tensor(window)).clone() for _, window in self.program.params]
        follow = manner.follow and self._machine.follows
        earlier = self._of_earlier_calls if follow else ()
        state = self.memory.state = State(self.memory.raw, self.memory.granularity, earlier) if earlier else None
        told = self.forward(manner)
        self.memory.state = None
        left = () if state is None else self._left(state, not manner.restored, self._made_anew if changed else ())
        outputs = range(len(self.program.outputs))
        found = [written(self.memory, self.program, place, inputs, own or {}) for place in outputs] if follow else []
        unwritten = tuple(each.unwritten for each in found) if follow else (0,) * len(outputs)
        partly = tuple(place for place, each in enumerate(found) if each.partly)
        written_to = self._changed_params(params, written=follow)
        return Account(told, unwritten, partly, self._changed_inputs(inputs), written_to, tuple(left))

    def _left(self, state: State, follows: bool, made_anew: Collection[int]) -> list[Json]:
        self._row.take(state, follows=follows, made_anew=made_anew)
        results = {window.storage for window in (*self.program.outputs, *self.program.inputs)}
        return self._row.left(results, flows(self.program.forward, lambda kernel: self._kernels[kernel].touches()))

    def _go_on(self, inputs: Sequence[torch.Tensor], poison: int, weights: Mapping[int, torch.Tensor]) -> None:
        """Make memory what a later call finds: all that lasts is as the last call left it, the rest is fresh. What the
        caller had given other values than at the start has those of the start again."""
        memory, kept = self.memory, set(self.program.kept)
        memory.fill([place for place in self._fresh if place not in kept], poison)
        for place in (*self._start, *kept):
            memory.made[place].fill_(False)
            memory.filled.pop(place, None)
        for number in self._moved - weights.keys():
            window = self._weight(number)
            memory.tensor(window).copy_(memory.shown(window, self._start[window.storage]))
        self._set(weights)
        self._give(inputs)

    def _set(self, weights: Mapping[int, torch.Tensor]) -> None:
        for number, value in weights.items():
            self.memory.tensor(self._weight(number)).copy_(value)
        self._moved = set(weights)

    def _weight(self, number: int) -> Window:
        """Of a parameter, or of a buffer after those."""
        return (*self.program.params, *self.program.buffers)[number][1]

    def _give(self, inputs: Sequence[torch.Tensor]) -> None:
        for place in self._given:
            self.memory.forget(place)
        _fill_in(self.memory, self.program.inputs, inputs)

    def _changed_inputs(self, inputs: Sequence[torch.Tensor]) -> tuple[int, ...]:
        windows = enumerate(zip(self.program.inputs, inputs, strict=True))
        return tuple(place for place, (window, given) in windows if not _same(self.memory.tensor(window), given))

    def _changed_params(self, before: Sequence[torch.Tensor], *, written: bool) -> tuple[str, ...]:
        """Parameters that hold other bytes than before, or, if it is known who has `written`, such as kernels wrote."""
        params = zip(self.program.params, before, strict=True)
        return tuple(
            name
            for (name, window), held in params
            if not torch.equal(_bytes_of(self.memory.tensor(window)), held)
            or (written and any(bool(part.any()) for part in self.memory.marks(window)))
        )

    def prepare(
        self, inputs: Sequence[torch.Tensor], poison: int, weights: Mapping[int, torch.Tensor] | None = None
    ) -> None:
        """Make memory what it is when a call begins.

        Raises:
            ForgedError: the inputs have another form than the program says.
        """
        memory, self._left_out = self.memory, ()
        for place, content in self._start.items():
            memory.restore(place, content)
        memory.fill(self._fresh, poison)
        self._set(weights or {})
        self._give(inputs)

    def forward(self, manner: Manner, choose: Choose | None = None) -> dict[str, Json]:
        """The steps of forward, on memory as it is, and what the run says of itself."""
        steps = tuple(step for step in self.program.forward if id(step) not in self._left_out)
        return self._run(steps, manner, choose)

    def _run(self, steps: Sequence[Step], manner: Manner, choose: Choose | None = None) -> dict[str, Json]:
        choose = choose or self._chosen(manner)
        with self._machine.running(self.memory, manner) as run:
            for step in steps:
                if isinstance(step, Operation):
                    operators.run(self.memory, step)
                else:
                    self._launch(run, step, choose, manner)
        return run.told()

    def _chosen(self, manner: Manner) -> Choose:
        """The variant that the call is to run first, then the others in random order."""
        if not self._tuned:
            return lambda launch, _: launch.variants
        chance = random.Random(manner.seed)

        def choose(launch: Launch, _: Callable[[Variant], None]) -> Sequence[Variant]:
            order = chance.sample(launch.variants, len(launch.variants))
            if not manner.configurations:
                return order
            first = launch.variants[manner.configurations[self._launches[id(launch)]]]
            return [first, *(variant for variant in order if variant is not first)]

        return choose

    def _tune(self, run: Run, launch: Launch, tuning: Tuning, manner: Manner) -> None:
        """Variants as an autotuner tries them, on the memory of the launch that counts: some, so often as chance has
        it, since how often a GPU runs each is a matter of time."""
        chance = random.Random(f"{manner.seed} {self._launches[id(launch)]}")
        for variant in chance.choices(launch.variants, k=chance.randint(1, MOST_TRIED)):
            self._operate((*variant.before, *tuning.before))
            if launch.kernel != manner.skip:
                with suppress(NoRoomError):
                    run.try_out(launch, variant, self._arguments(variant))
            self._operate(tuning.after)
        self._operate(tuning.reset)

    def _operate(self, operations: Sequence[Operation]) -> None:
        for operation in operations:
            operators.run(self.memory, operation)

    def _arguments(self, variant: Variant) -> dict[str, Any]:
        return {name: self._argument(value) for name, value in variant.args}

    def _launch(self, run: Run, launch: Launch, choose: Choose, manner: Manner) -> None:
        if manner.tuning and launch.tuning is not None:
            self._tune(run, launch, launch.tuning, manner)
        attempt = partial(self._launch_variant, run, launch, manner)
        *others, last = choose(launch, attempt)
        for variant in others:
            try:
                attempt(variant)
            except NoRoomError:
                continue
            return
        attempt(last)

    def _launch_variant(self, run: Run, launch: Launch, manner: Manner, variant: Variant) -> None:
        self._operate(variant.before)
        if launch.kernel != manner.skip:
            run.launch(launch, variant, self._arguments(variant))

    def _argument(self, value: Value) -> Any:
        match value:
            case Window():
                return self.memory.tensor(value)
            case Descriptor():
                base = self.memory.tensor(value.base)
                sizes = (list(part) for part in (value.shape, value.strides, value.block))
                return TensorDescriptor(base, *sizes, padding=value.padding)
            case tuple():
                return tuple(self._argument(part) for part in value)
            case Function():
                return self._kernels[value.kernel]
            case Name():
                return getattr(tl, value.text)
        return value


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
        write(place, tensor)


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """What a tensor holds, as bytes: a NaN is the same as itself. They are the tensor's own where these lie densely."""
    return tensor.contiguous().flatten().view(torch.uint8)


def _same(tensor: torch.Tensor, given: torch.Tensor) -> bool:
    return torch.equal(_bytes_of(tensor), _bytes_of(given.to(tensor.device)))


def _launches(steps: Sequence[Step]) -> list[Launch]:
    return [step for step in steps if isinstance(step, Launch)]
