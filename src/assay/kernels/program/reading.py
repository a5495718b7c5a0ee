"""A program from bytes that whoever wrote the submission may have forged.

    program = read(data)
    if isinstance(program, Refusal): ...

Every index, size, stride, dtype, grid, option, total and nesting is checked before anything is allocated or run.
Nothing here raises for anything in the bytes.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar, cast

from assay.kernels.program.form import (
    DTYPES,
    Descriptor,
    Function,
    Kernel,
    Launch,
    Name,
    Operation,
    Outside,
    Program,
    Step,
    Tuning,
    Value,
    Variant,
    Window,
    contradiction,
)
from assay.kernels.program.limits import GRID, Limits, option_fault

T = TypeVar("T")

MEANINGS = frozenset({"module", "member", "constant", "function", "other"})
"""What the name of a kernel may stand for; `assay.kernels.language` decides which of it has a place in a kernel."""
LANGUAGE_DTYPES = frozenset(
    {
        *("int1", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "void"),
        *("float16", "bfloat16", "float32", "float64", "float8e5", "float8e4nv", "float8e4b8", "float8e4b15"),
    }
)
_OPERATOR = re.compile(r"(?:[a-z_][a-z0-9_]{0,40}::)?_{0,2}[a-zA-Z][a-zA-Z0-9_]{0,60}(?:\.[a-zA-Z][a-zA-Z0-9_]{0,40})?")
_SPECIAL = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
_FIELDS = {
    *("version", "storages", "constants", "inputs", "init_inputs", "params", "buffers"),
    *("outputs", "module", "init", "forward", "kernels", "differs", "kept", "once", "unchanged"),
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why some bytes are not a program that may be run."""

    reason: str


class _Refused(Exception):
    """Carries the reason out of the reader."""


def read(data: bytes, limits: Limits | None = None) -> Program | Refusal:
    """The program that some bytes are, or why they are none. Never raises."""
    limits = limits or Limits()
    if len(data) > limits.json_bytes:
        return Refusal(f"the program has {len(data)} bytes; at most {limits.json_bytes} are read")
    try:
        return _Reader(limits).program(_DECODER.decode(data.decode("utf-8")))
    except _Refused as error:
        return Refusal(str(error))
    except (ValueError, RecursionError) as error:  # not JSON, not UTF-8, a number of thousands of digits, deep nesting
        return Refusal(f"the program is not JSON: {str(error)[:200]}")


def _no_constant(text: str) -> NoReturn:
    raise _Refused(f"{text} is not a number of JSON")


_DECODER = json.JSONDecoder(parse_constant=_no_constant)


def _refuse(what: str, found: object) -> NoReturn:
    raise _Refused(f"{what}, not {found!r:.60}")


class _Reader:
    """Reads one program; counts what is bounded over all of it."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.storages: tuple[int, ...] = ()
        self.kernels = 0
        self.steps = 0

    def program(self, found: object) -> Program:
        fields = self._object(found, "a program")
        if set(fields) != _FIELDS or fields["version"] != 1:
            _refuse(f"a program has version 1 and the fields {sorted(_FIELDS)}", sorted(map(str, fields)))
        limits = self.limits
        self.storages = self._list(fields["storages"], "storages", limits.storages, self._storage)
        if sum(self.storages) > limits.storage_bytes:
            raise _Refused(f"the storages have {sum(self.storages)} bytes; at most {limits.storage_bytes} are allowed")
        constants = self._list(fields["constants"], "constants", limits.storages, self._constant)
        if sum(len(content) for _, content in constants) > limits.literal_bytes:
            raise _Refused(f"the constants have more than {limits.literal_bytes} bytes")
        if len({storage for storage, _ in constants}) != len(constants):
            raise _Refused("two constants share a storage")
        self.kernels = len(self._any_list(fields["kernels"], "kernels", limits.kernels))
        kernels = self._list(fields["kernels"], "kernels", limits.kernels, self._kernel)
        if sum(len(kernel.source) for kernel in kernels) > limits.source_characters:
            raise _Refused(f"the kernels have more than {limits.source_characters} characters")
        forward = self._list(fields["forward"], "forward", limits.steps, self._step)
        program = Program(
            storages=self.storages,
            constants=constants,
            inputs=self._list(fields["inputs"], "inputs", limits.tensors, self._window),
            init_inputs=self._list(fields["init_inputs"], "init_inputs", limits.tensors, self._window),
            params=self._list(fields["params"], "params", limits.tensors, self._parameter),
            buffers=self._list(fields["buffers"], "buffers", limits.tensors, self._parameter),
            outputs=self._list(fields["outputs"], "outputs", limits.tensors, self._window),
            module=self._list(fields["module"], "module", limits.steps, self._step),
            init=self._list(fields["init"], "init", limits.steps, self._step),
            forward=forward,
            kernels=kernels,
            differs=self._text(fields["differs"], "differs"),
            kept=self._list(fields["kept"], "kept", limits.storages, self._place),
            once=self._places(fields["once"], "once", len(forward) - 1),
            unchanged=self._places(fields["unchanged"], "unchanged", len(forward) - 1),
        )
        if said := contradiction(program):
            raise _Refused(said)
        return program

    def _object(self, found: object, what: str) -> dict[str, Any]:
        if not isinstance(found, dict):
            _refuse(f"{what} is an object", found)
        return found

    def _any_list(self, found: object, what: str, most: int) -> list[Any]:
        if not isinstance(found, list):
            _refuse(f"{what} is a list", found)
        if len(found) > most:
            raise _Refused(f"{what} has {len(found)} entries; at most {most} are allowed")
        return found

    def _list(self, found: object, what: str, most: int, read_one: Callable[[Any], T]) -> tuple[T, ...]:
        return tuple(read_one(part) for part in self._any_list(found, what, most))

    def _places(self, found: object, what: str, last: int) -> tuple[int, ...]:
        return self._list(found, what, self.limits.steps, lambda place: self._whole(place, "a step", 0, last))

    def _exactly(self, found: object, what: str, number: int) -> list[Any]:
        parts = self._any_list(found, what, number)
        if len(parts) != number:
            _refuse(f"{what} has {number} entries", len(parts))
        return parts

    def _whole(self, found: object, what: str, low: int, high: int) -> int:
        if type(found) is not int or not low <= found <= high:
            _refuse(f"{what} is a whole number from {low} to {high}", found)
        return found

    def _text(self, found: object, what: str, most: int = 0) -> str:
        most = most or self.limits.string_characters
        if type(found) is not str or len(found) > most:
            _refuse(f"{what} is a text of at most {most} characters", found)
        if not found.isascii() and any("\ud800" <= character <= "\udfff" for character in found):
            raise _Refused(f"{what} is not valid Unicode")
        return found

    def _identifier(self, found: object, what: str) -> str:
        text = self._text(found, what, 128)
        if not (text.isascii() and text.isidentifier()):
            _refuse(f"{what} is a name", found)
        return text

    def _storage(self, found: object) -> int:
        return self._whole(found, "the size of a storage", 0, self.limits.storage_bytes)

    def _place(self, found: object) -> int:
        return self._whole(found, "a storage", 0, len(self.storages) - 1)

    def _constant(self, found: object) -> tuple[int, bytes]:
        place, text = self._exactly(found, "a constant", 2)
        storage = self._place(place)
        text = self._text(text, "the bytes of a constant", 2 * self.limits.literal_bytes)
        try:
            content = base64.b64decode(text.encode("utf-8"), validate=True)
        except binascii.Error:
            _refuse("the bytes of a constant are base64", text)
        if len(content) != self.storages[storage]:
            raise _Refused(f"a constant has {len(content)} bytes, its storage {self.storages[storage]}")
        return storage, content

    def _window(self, found: object) -> Window:
        storage, dtype, size, stride, offset = self._exactly(found, "a window", 5)
        if type(dtype) is not str or dtype not in DTYPES:
            _refuse(f"the dtype of a window is one of {sorted(DTYPES)}", dtype)
        limits = self.limits
        window = Window(
            self._place(storage),
            dtype,
            self._numbers(size, "the size of a window", limits.elements, limits.rank),
            self._numbers(stride, "the stride of a window", limits.storage_bytes, limits.rank),
            self._whole(offset, "the offset of a window", 0, limits.storage_bytes),
        )
        if len(window.size) != len(window.stride):
            raise _Refused("a window has another number of sizes than of strides")
        if window.elements > limits.elements:
            raise _Refused(f"a window has {window.elements} elements; at most {limits.elements} are allowed")
        if window.end > self.storages[window.storage]:
            raise _Refused(f"a window reaches byte {window.end} of {self.storages[window.storage]} of its storage")
        return window

    def _numbers(self, found: object, what: str, most: int, count: int) -> tuple[int, ...]:
        return tuple(self._whole(part, what, 0, most) for part in self._any_list(found, what, count))

    def _parameter(self, found: object) -> tuple[str, Window]:
        name, window = self._exactly(found, "a parameter", 2)
        return self._text(name, "the name of a parameter"), self._window(window)

    def _value(self, found: object, depth: int = 0) -> Value:
        if depth > self.limits.nesting:
            raise _Refused(f"values are nested deeper than {self.limits.nesting}")
        if found is None or type(found) is bool:
            return found
        if type(found) is int:
            return self._whole(found, "a number", -(2**63), 2**64 - 1)
        if type(found) is float:
            if not math.isfinite(found):
                _refuse("a number of JSON is finite", found)
            return found
        if type(found) is str:
            return self._text(found, "a text")
        if isinstance(found, list):
            parts = self._any_list(found, "a list of values", self.limits.args)
            return tuple(self._value(part, depth + 1) for part in parts)
        fields = self._object(found, "a value")
        if len(fields) != 1:
            _refuse("a tagged value has one field", sorted(map(str, fields)))
        (tag, content), *_ = fields.items()
        return self._tagged(tag, content)

    def _tagged(self, tag: str, content: object) -> Value:
        match tag:
            case "window":
                return self._window(content)
            case "dtype":
                return Name("dtype", self._one_of(content, "a dtype", DTYPES))
            case "language":
                return Name("language", self._one_of(content, "a dtype of the language", LANGUAGE_DTYPES))
            case "float":
                return _SPECIAL[self._one_of(content, "a special number", _SPECIAL)]
            case "kernel":
                return Function(self._kernel_number(content))
            case "descriptor":
                return self._descriptor(content)
        _refuse("a value is tagged window, dtype, language, float, kernel or descriptor", tag)

    def _one_of(self, found: object, what: str, names: Sequence[str] | frozenset[str] | dict[str, Any]) -> str:
        if type(found) is not str or found not in names:
            _refuse(f"{what} is one of {sorted(names)}", found)
        return found

    def _kernel_number(self, found: object) -> int:
        return self._whole(found, "a kernel", 0, self.kernels - 1)

    def _descriptor(self, found: object) -> Descriptor:
        base, shape, strides, block, padding = self._exactly(found, "a descriptor", 5)
        most = self.limits.storage_bytes
        descriptor = Descriptor(
            self._window(base),
            self._numbers(shape, "the shape of a descriptor", most, 5),
            self._numbers(strides, "the strides of a descriptor", most, 5),
            self._numbers(block, "the block of a descriptor", 1 << 20, 5),
            self._one_of(padding, "the padding of a descriptor", ("zero", "nan")),
        )
        if not len(descriptor.shape) == len(descriptor.strides) == len(descriptor.block) > 0:
            raise _Refused("a descriptor has as many sizes as strides and block sizes, at least one")
        return descriptor

    def _step(self, found: object) -> Step:
        fields = self._object(found, "a step")
        return self._launch(fields) if "launch" in fields else self._operation(fields)

    def _count_step(self) -> None:
        self.steps += 1
        if self.steps > self.limits.steps:
            raise _Refused(f"the program has more than {self.limits.steps} operations and launches")

    def _operation(self, found: object) -> Operation:
        fields = self._object(found, "an operation")
        self._count_step()
        if set(fields) != {"op", "args", "kwargs", "outs", "line"}:
            _refuse("an operation has op, args, kwargs, outs and line", sorted(map(str, fields)))
        name = self._text(fields["op"], "the name of an operation")
        if not _OPERATOR.fullmatch(name):
            _refuse("an operation has a name of PyTorch's form", name)
        return Operation(
            name,
            self._list(fields["args"], "args", self.limits.args, self._value),
            self._pairs(fields["kwargs"], "kwargs", self._value),
            self._list(fields["outs"], "outs", self.limits.args, self._window),
            self._line(fields["line"]),
        )

    def _line(self, found: object) -> int:
        return self._whole(found, "a line", 0, 1 << 24)

    def _pairs(self, found: object, what: str, read_one: Callable[[Any], T]) -> tuple[tuple[str, T], ...]:
        fields = self._object(found, what)
        if len(fields) > self.limits.args:
            raise _Refused(f"{what} has {len(fields)} entries; at most {self.limits.args} are allowed")
        return tuple((self._identifier(name, f"a name in {what}"), read_one(value)) for name, value in fields.items())

    def _launch(self, fields: dict[str, Any]) -> Launch:
        self._count_step()
        if not {"launch", "variants", "line"} <= set(fields) <= {"launch", "variants", "line", "tuning", "allocator"}:
            _refuse("a launch has launch, variants, line, and may have tuning and allocator", sorted(map(str, fields)))
        if type(fields.get("allocator", False)) is not bool:
            _refuse("whether there is an allocator is true or false", fields["allocator"])
        variants = self._list(fields["variants"], "variants", self.limits.variants, self._variant)
        if not variants:
            raise _Refused("a launch has at least one variant")
        return Launch(
            self._kernel_number(fields["launch"]),
            variants,
            self._line(fields["line"]),
            self._tuning(fields["tuning"]) if "tuning" in fields else None,
            fields.get("allocator", False),
        )

    def _tuning(self, found: object) -> Tuning:
        before, after, reset = (
            self._list(part, "a part of tuning", self.limits.steps, self._operation)
            for part in self._exactly(found, "tuning", 3)
        )
        return Tuning(before, after, reset)

    def _variant(self, found: object) -> Variant:
        fields = self._object(found, "a variant")
        if set(fields) != {"grid", "args", "options", "before"}:
            _refuse("a variant has grid, args, options and before", sorted(map(str, fields)))
        extents = self._any_list(fields["grid"], "a grid", len(GRID))
        if not extents:
            raise _Refused("a grid has at least one size")
        return Variant(
            tuple(self._whole(extent, "a grid", 0, most) for extent, most in zip(extents, GRID, strict=False)),
            self._pairs(fields["args"], "args", self._value),
            self._options(fields["options"]),
            self._list(fields["before"], "before", self.limits.steps, self._operation),
        )

    def _options(self, found: object) -> tuple[tuple[str, int | bool | None], ...]:
        fields = self._object(found, "options")
        for name, value in fields.items():
            if fault := option_fault(name, value):
                raise _Refused(fault)
        return tuple(fields.items())

    def _kernel(self, found: object) -> Kernel:
        fields = self._object(found, "a kernel")
        if set(fields) != {"name", "source", "names", "line"}:
            _refuse("a kernel has name, source, names and line", sorted(map(str, fields)))
        names = self._object(fields["names"], "names")
        if len(names) > self.limits.names:
            raise _Refused(f"a kernel uses more than {self.limits.names} names")
        return Kernel(
            self._identifier(fields["name"], "the name of a kernel"),
            self._text(fields["source"], "the source of a kernel", self.limits.source_characters),
            self._whole(fields["line"], "a line", 1, 1 << 24),
            tuple(self._meaning(name, meaning) for name, meaning in names.items()),
        )

    def _meaning(self, name: object, found: object) -> tuple[str, str, Outside]:
        fields = self._object(found, "a name's meaning")
        if len(fields) != 1:
            _refuse("a name has one meaning", sorted(map(str, fields)))
        (kind, content), *_ = fields.items()
        value = self._outside(content) if kind == "constant" else self._text(content, "what a name stands for")
        return (
            self._identifier(name, "a name in a kernel"),
            self._one_of(kind, "what a name stands for", MEANINGS),
            value,
        )

    def _outside(self, found: object, depth: int = 0) -> Outside:
        if isinstance(found, list) and depth < self.limits.nesting:
            parts = self._any_list(found, "a constant of a kernel", self.limits.args)
            return tuple(self._outside(part, depth + 1) for part in parts)
        if isinstance(found, list) or (isinstance(found, dict) and set(found) != {"float"}):
            _refuse("a constant of a kernel is a number, a text, None, or a list of those", found)
        return cast("Outside", self._value(found))
