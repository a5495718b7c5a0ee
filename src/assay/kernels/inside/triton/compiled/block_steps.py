"""What is known of each block that a kernel makes, read from the compiler's text for a GPU (TTGIR)."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from assay.kernels.inside.triton.compiled import lane_facts
from assay.kernels.inside.triton.compiled.lane_facts import Fact

_PASSES = 16
"""Over a text, until what its loops carry stays what it is."""
_LINE = re.compile(r"^\s*(?:(%[\w.$-]+)(?::(\d+))? = )?\"?([\w.]+)\"?(.*)$")
_VALUE = re.compile(r"%[\w.$-]+(?:#\d+)?")
_PARAMETER = re.compile(r"(%[\w.$-]+): [^%{]*?(?:\{tt\.divisibility = (\d+) : i32\}|loc\()")
_LOOP = re.compile(r" (?:unsigned )?(%[\w.$-]+) = (%[\w.$#-]+) to %[\w.$#-]+ step (%[\w.$#-]+)")
_CARRIED = re.compile(r"(%[\w.$-]+) = (%[\w.$#-]+)")
_CONSTANT = re.compile(r" (?:dense<([^\[\]\"<>]+)>|(\S+))")
_RANGE = re.compile(r"end = (\d+) : i32, start = (\d+) : i32")
_AXIS = re.compile(r"axis = (\d+)")
_ORDER = re.compile(r"order = array<i32: ([\d, ]+)>")
_SHAPE = re.compile(r"tensor<((?:\d+x)+)")
_PROMISE = re.compile(r"tt\.(contiguity|divisibility|constancy) = dense<(\[[\d, ]+\]|\d+)>")
_QUOTED = re.compile(r'"[^"]*"')
_KEPT = {"arith.extsi", "arith.extui", "arith.trunci", "ttg.convert_layout", "tt.bitcast"}
_DOUBTFUL = {"tt.load", "arith.select", "arith.shli", "arith.shrsi", "arith.shrui"}
"""Of whose results Triton may know more than is so."""
_NUMBERS = {"tt.get_program_id", "tt.get_num_programs"}


class Step(NamedTuple):
    """An operation whose result is a block."""

    name: str
    place: str
    """As the text names it: `#loc12`."""
    kind: str
    """What stands behind its name, which ends with its type."""
    fact: Fact


def steps(text: str) -> list[Step]:
    """All of a kernel, with what is known of their results."""
    reading = _Reading()
    for _ in range(_PASSES):
        if reading.learns_nothing(text):
            return reading.found
    reading.gives_up = True
    reading.learns_nothing(text)
    return reading.found


def shapes(kind: str) -> list[tuple[int, ...]]:
    """The shapes of the blocks among some types."""
    return [tuple(map(int, sizes[:-1].split("x"))) for sizes in _SHAPE.findall(kind)]


@dataclass(slots=True)
class _Region:
    """What stands in braces; of a branch or a loop, with its results."""

    results: Sequence[str] = ()
    line: int = 0
    starts: Sequence[Fact] = ()
    """What a loop carries at first."""
    names: Sequence[str] = ()
    """What a loop carries, in the loop."""
    yields: list[Fact] = field(default_factory=list)


class _Reading:
    def __init__(self) -> None:
        self.found: list[Step] = []
        self.gives_up = False
        """Whether what loops carry is taken for unknown."""
        self._known: dict[str, Fact] = {}
        self._carried: dict[tuple[int, int], Fact] = {}
        """What loops carry, as far as the passes before know: by line and place."""
        self._same = True

    def learns_nothing(self, text: str) -> bool:
        """Read the text; whether that says nothing new of what loops carry."""
        self.found, self._known, self._same = [], {}, True
        regions: list[_Region] = []
        for number, line in enumerate(text.splitlines()):
            bare = _QUOTED.sub("", line)
            depth = bare.count("{") - bare.count("}")
            opened = self._read(number, line, regions)
            regions.extend([opened, *(_Region() for _ in range(depth - 1))][: max(depth, 0)])
            for _ in range(min(-depth, len(regions))):
                self._close(regions.pop())
        return self._same

    def _read(self, number: int, line: str, regions: Sequence[_Region]) -> _Region:
        """Take a line, and say what it opens."""
        match = _LINE.match(line)
        if match is None:
            return _Region()
        result, count, name, rest = match.groups()
        body, _, place = rest.rpartition(" loc(")
        match name:
            case "tt.func":
                self._known = {each: lane_facts.number(int(by or 1)) for each, by in _PARAMETER.findall(line)}
            case "scf.yield" if regions:
                self._yield(regions[-1], [self._of(each) for each in _VALUE.findall(body)])
            case "scf.for" | "scf.if":
                names = [result] if not count else [f"{result}#{each}" for each in range(int(count))]
                return self._open(number, name, names if result else [], rest)
            case _ if result is not None and count is None:
                fact = self._made(name, body)
                self._known[result] = fact
                if fact.constancy:
                    self.found.append(Step(name, place.removesuffix(")"), body, fact))
        return _Region()

    def _open(self, number: int, name: str, results: Sequence[str], rest: str) -> _Region:
        if name == "scf.if":
            return _Region(results, number)
        head, _, carried = rest.partition(" iter_args(")
        if (loop := _LOOP.match(head)) is not None:
            self._known[loop[1]] = lane_facts.number(math.gcd(self._of(loop[2]).every, self._of(loop[3]).every))
        pairs = _CARRIED.findall(carried.partition(") -> ")[0])
        region = _Region(results, number, [self._of(start) for _, start in pairs], [inner for inner, _ in pairs])
        for place, (inner, start) in enumerate(zip(region.names, region.starts, strict=True)):
            known = self._carried.get((number, place), start)
            self._known[inner] = lane_facts.unknown(len(start.constancy)) if self.gives_up else known
        return region

    def _yield(self, region: _Region, values: Sequence[Fact]) -> None:
        before = region.yields or values
        region.yields = [_joined(*pair) for pair in zip(before, values, strict=False)]

    def _close(self, region: _Region) -> None:
        for place, (name, start, end) in enumerate(zip(region.names, region.starts, region.yields, strict=False)):
            was = self._known[name]
            self._carried[region.line, place] = now = _joined(was, end)
            self._same &= self.gives_up or now == was
            region.yields[place] = _joined(start, end)
        for place, name in enumerate(region.results):
            known = region.yields[place] if place < len(region.yields) else lane_facts.unknown(0)
            self._known[name] = replace(known, doubtful=True)

    def _of(self, name: str) -> Fact:
        return self._known.get(name, lane_facts.unknown(0))

    def _made(self, name: str, body: str) -> Fact:
        """What is known of a result."""
        operands = [self._of(each) for each in _VALUE.findall(body)]
        blocks = shapes(body)
        try:
            fact = _by_rules(name, body, blocks, operands)
        except (ValueError, IndexError, TypeError):  # not the form that the rules are for
            fact = None
        if fact is None:
            fact = lane_facts.unknown(len(blocks[-1]) if blocks else 0)
        doubtful = fact.doubtful or name in _DOUBTFUL or any(each.doubtful for each in operands)
        return _promised(replace(fact, doubtful=doubtful), body)


def _by_rules(name: str, body: str, blocks: Sequence[tuple[int, ...]], operands: Sequence[Fact]) -> Fact | None:
    """What is known of a result by what is known of its operands; None for nothing."""
    if name == "arith.constant":
        return _constant(body, blocks[-1] if blocks else ())
    if name == "tt.make_range" and (found := _RANGE.search(body)) is not None:
        return lane_facts.counting(int(found[1]) - int(found[2]), int(found[2]))
    if name in _NUMBERS:
        return lane_facts.number()
    if name == "tt.splat":
        return lane_facts.same(blocks[-1], operands[0].every, operands[0].value)
    if name in _KEPT:
        return operands[0]
    if name == "tt.expand_dims" and (found := _AXIS.search(body)) is not None:
        return lane_facts.expanded(operands[0], int(found[1]))
    if name == "tt.broadcast":
        return lane_facts.broadcast(operands[0], *blocks)
    if name == "tt.trans" and (found := _ORDER.search(body)) is not None:
        return lane_facts.permuted(operands[0], [int(axis) for axis in found[1].split(",")])
    if name == "arith.cmpi":
        return lane_facts.compared(body.split(",")[0].strip(), *operands)
    if name == "arith.select":
        return lane_facts.chosen(*operands)
    if name == "tt.load":
        return lane_facts.loaded(*operands)
    return lane_facts.RULES[name](*operands) if name in lane_facts.RULES else None


def _constant(body: str, shape: tuple[int, ...]) -> Fact | None:
    found = _CONSTANT.match(body)
    if found is None:
        return None
    words = found[1] or found[2]
    value = {"true": 1, "false": 0}.get(words) if words in ("true", "false") else _whole(words)
    return lane_facts.same(shape, 1 if value is None else lane_facts.power(value), value)


def _whole(words: str) -> int | None:
    return int(words) if words.lstrip("-").isdecimal() else None


def _joined(one: Fact, other: Fact) -> Fact:
    try:
        fact = lane_facts.joined(one, other)
    except ValueError:
        fact = lane_facts.unknown(max(len(one.constancy), len(other.constancy)))
    return replace(fact, doubtful=fact.doubtful or one.doubtful or other.doubtful)


def _promised(fact: Fact, body: str) -> Fact:
    """With what the kernel promises of it, which is held against the values elsewhere."""
    said = {name: [int(one) for one in values.strip("[]").split(",")] for name, values in _PROMISE.findall(body)}
    said = {name: values for name, values in said.items() if len(values) == len(fact.constancy)}
    if "constancy" in said:
        fact = replace(fact, constancy=tuple(map(max, fact.constancy, said["constancy"])))
    if "contiguity" in said:
        fact = replace(fact, contiguity=tuple(map(max, fact.contiguity, said["contiguity"])))
        if "divisibility" in said:
            fact = replace(fact, firsts=tuple(map(max, fact.firsts, said["divisibility"])))
    return fact
