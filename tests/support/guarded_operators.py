"""Tries wrong sizes, indices and numbers on every operator that a replay runs; run as a program of its own.

    python -m support.guarded_operators 60 [names of operators]

Tensors end where a page begins that may not be touched, or begin where one ends, so an operator that reaches beyond
what it was given dies of a signal. Each operator is tried in a fork. Prints the calls that died, as JSON.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import random
import resource
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from assay.kernels.inside.replay import operators
from assay.kernels.inside.replay.memory import Memory
from assay.kernels.operators import normal_name
from assay.kernels.program import operations
from assay.kernels.program.form import DTYPES, Name, Operation, Value, Window, dense_strides, windows_in
from support.programs import made

PAGE = mmap.PAGESIZE
ROOM = 1 << 31
"""Address space of a fork beyond what it has: what asks for more is told so by PyTorch."""
TOLD = 2000
NAMES = operations.FILLS | operations.MOVES | operations.RANDOM | operations.ARITHMETIC | operations.HEAVY
SHAPES = (
    *((), (1,), (4,), (3,), (3000,), (0,), (2, 4), (4, 4), (4, 3), (1, 1), (2, 3000), (0, 4), (2, 4, 3), (2, 4, 4)),
    *((2, 3000, 1), (1, 4, 8), (4, 4, 3), (2, 4, 5, 5), (4, 4, 3, 3), (2, 2, 16, 16)),
)
INDICES = ((0, 2), (-1, 0), (100_000, 100_001), (-100_000, -99_999))
USUAL = (0, 1, 2, -1, 3, 4, 8)
UNUSUAL = (5, 24, -3, 3000, 100_000, -100_000, 2**31, 2**62, -(2**62))
WORDS = ("reduced", "complete", "r", "none", "tanh", "trunc", "floor", "mean")


class Pool:
    """A memory whose storages are guarded, and windows onto them."""

    def __init__(self) -> None:
        self.windows: list[Window] = []
        self._contents: list[torch.Tensor] = []
        self._maps: list[mmap.mmap] = []
        draw = torch.Generator().manual_seed(1)
        for shape in SHAPES:
            self._add(torch.randn(shape, generator=draw))
        for shape in ((), (4,), (2, 4), (3000,), (4, 4)):
            for low, high in INDICES:
                self._add(torch.randint(low, high, shape, generator=draw))
            self._add(torch.rand(shape, generator=draw) < 0.5)
            self._add(torch.rand(shape, generator=draw).double())
        self.plain = len(SHAPES)
        turned = [w for w in self.windows if len(w.size) == 2]
        self.windows += [Window(w.storage, w.dtype, w.size[::-1], w.stride[::-1], 0) for w in turned]
        self.windows += [Window(2, "float32", (3, 4), (0, 1), 0), Window(2, "float32", (2,), (1,), 1)]
        sizes = [max(1, content.numel() * content.element_size()) for content in self._contents]
        self.memory = Memory(made(storages=sizes, inputs=[], params=[], outputs=[], init=[], forward=[]))
        self.memory.marked = False
        self.memory.raw = [self._guarded(content, place % 2) for place, content in enumerate(self._contents)]

    def _add(self, content: torch.Tensor) -> None:
        size = tuple(content.shape)
        dtype = str(content.dtype).removeprefix("torch.")
        self.windows.append(Window(len(self._contents), dtype, size, dense_strides(size), 0))
        self._contents.append(content)

    def _guarded(self, content: torch.Tensor, at_start: int) -> torch.Tensor:
        data = content.flatten().view(torch.uint8).numpy().tobytes() if content.numel() else b"\0"
        room = -(-len(data) // PAGE) * PAGE
        found = mmap.mmap(-1, room + 2 * PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # a fork's own
        self._maps.append(found)
        address = ctypes.addressof(ctypes.c_char.from_buffer(found))
        for guard in (address, address + PAGE + room):
            if ctypes.CDLL(None).mprotect(ctypes.c_void_p(guard), PAGE, 0):
                raise OSError("a page cannot be guarded")
        begin = PAGE if at_start else PAGE + room - len(data)
        found[begin : begin + len(data)] = data
        return torch.frombuffer(found, dtype=torch.uint8, count=len(data), offset=begin)


def a_value(kind: str, chance: random.Random, pool: Pool) -> Value:
    """Something for an argument, not always of its kind."""
    if kind.startswith("Optional["):
        return None if chance.random() < 0.4 else a_value(kind[9:-1], chance, pool)
    if kind == "Tensor":
        return chance.choice(pool.windows[: pool.plain] if chance.random() < 0.6 else pool.windows)
    if kind.startswith("List["):
        if "Tensor" in kind and chance.random() < 0.4:
            return (chance.choice(pool.windows),) * 2
        return tuple(a_value(kind[5:-1], chance, pool) for _ in range(chance.randrange(4)))
    if kind == "ScalarType" and chance.random() < 0.7:
        return Name("dtype", chance.choice(sorted(DTYPES)))
    if kind == "bool":
        return chance.random() < 0.5
    if kind == "str":
        return chance.choice(WORDS)
    if kind in ("float", "number"):
        return chance.choice((0.0, 1.0, 0.5, -1.0, 2, 1e30, float("nan"), float("inf"), True))
    return chance.choice(USUAL) if chance.random() < 0.85 else chance.choice(UNUSUAL)


def an_operation(name: str, operator: Any, given: list[Value]) -> Operation:
    """An operation with some arguments; its results are those that it writes into, and else not known."""
    arguments = operator._schema.arguments
    pairs = list(zip(arguments, given, strict=True))
    written = [w for a, v in pairs if a.alias_info is not None and a.alias_info.is_write for w in windows_in(v)]
    args = tuple(value for argument, value in pairs if not argument.kwarg_only)
    kwargs = tuple((argument.name, value) for argument, value in pairs if argument.kwarg_only)
    return Operation(name, args, kwargs, tuple(written), 0)


def attempts(name: str, operator: Any, count: int, pool: Pool, told: mmap.mmap) -> None:
    """Run an operator with arguments by chance, half of them one change away from some that it took."""
    chance = random.Random(name)
    kinds = [str(argument.real_type) for argument in operator._schema.arguments]
    taken: list[list[Value]] = []
    for _ in range(count):
        if taken and chance.random() < 0.6:
            given = list(chance.choice(taken))
            place = chance.randrange(len(given))
            given[place] = a_value(kinds[place], chance, pool)
        else:
            given = [_usual(argument, chance, pool) for argument in operator._schema.arguments]
        step = an_operation(name, operator, given)
        told[:TOLD] = repr(step).encode()[:TOLD].ljust(TOLD, b" ")
        try:
            operators.run(pool.memory, step)
        except operators.ForgedError as error:
            if " gives " in str(error) and "gives no" not in str(error):  # it ran, and made something of another size
                taken.append(given)
        except Exception:  # noqa: BLE001 - PyTorch refuses most of them, in any way
            continue
        else:
            taken.append(given)


def _usual(argument: Any, chance: random.Random, pool: Pool) -> Value:
    if argument.has_default_value() and chance.random() < 0.6:
        found = argument.default_value
        return tuple(found) if isinstance(found, list) else found
    return a_value(str(argument.real_type), chance, pool)


def overloads(base: str) -> Iterator[tuple[str, Any]]:
    """All operators of PyTorch's that a program may name so, in place and not."""
    for spelled in (base, f"{base}_"):
        packet = getattr(torch.ops.aten, spelled, None)
        if packet is not None and normal_name(spelled) == base:
            found = ((f"{spelled}.{each}", getattr(packet, each)) for each in packet.overloads())
            yield from ((name, each) for name, each in found if _gives_tensors(each))


def _gives_tensors(operator: Any) -> bool:
    return any("Tensor" in str(result.type) for result in operator._schema.returns)


def died(named: list[tuple[str, Any]], count: int, pool: Pool) -> str:
    """The call of which a fork died that tries some operators; empty where it did not."""
    told = mmap.mmap(-1, PAGE)  # shared with the fork
    child = os.fork()
    if child == 0:
        try:
            pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
            resource.setrlimit(resource.RLIMIT_AS, (pages * PAGE + ROOM,) * 2)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            for name, operator in named:
                attempts(name, operator, count, pool, told)
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    return f"{os.waitstatus_to_exitcode(status)}: {told[:TOLD].decode().strip()}" if status else ""


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    count, *names = sys.argv[1:]
    pool = Pool()
    tried = [list(overloads(base)) for base in names or sorted(NAMES)]
    found = [call for named in tried if (call := died(named, int(count), pool))]
    print(json.dumps({"tried": sum(map(len, tried)), "died": found}))


if __name__ == "__main__":
    main()
