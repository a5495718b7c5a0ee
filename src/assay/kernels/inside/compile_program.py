"""Harness of the compile stage for Triton: the launches of a program, compiled for the GPU that they are meant for.

The `source` of the job is a program, and no Python of whoever submitted it runs: the compiler is given text that is
generated from the kernels as the kernel language reads them. A launch is compiled in each of its variants, those of an
autotuned kernel up to a bound and the rest only read, or all of them only read and laid out (`read_only` in the
header). The report says what compiled, what the compiler refused, and which variants a program is left with: an
autotuner passes over some refusals, and raises at any other.
"""

from __future__ import annotations

import json
import linecache
import math
import os
import shutil
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from types import ModuleType
from typing import TYPE_CHECKING, Any

os.environ.pop("TRITON_INTERPRET", None)  # read when Triton is imported: its interpreter compiles nothing

from triton.compiler.errors import CompileTimeAssertionFailure
from triton.runtime.jit import get_jit_fn_file_line

from assay.kernels import language
from assay.kernels.compile.stage import LAUNCHES_TOLD, NAME_CHARACTERS
from assay.kernels.inside.triton import ahead_of_time, front_end
from assay.kernels.inside.triton.compiled import layouts
from assay.kernels.inside.triton.compiled.variants import chosen
from assay.kernels.inside.triton.compiler_words import FILE, NO_ALLOCATOR, PASSED_OVER, UNLIKE, Translation
from assay.kernels.inside.triton.stand_ins import argument
from assay.kernels.language import CompilerText, Kernels
from assay.kernels.language.flow import sites
from assay.kernels.program.form import LINE_CHARACTERS, Launch, Program, Step, Variant, difference, table_of, windows_in
from assay.kernels.program.limits import UNALLOCATED
from assay.kernels.program.reading import Refusal, read
from assay.kernels.source_text import lines_of
from assay.sandbox.base import REPORT_BYTES

if TYPE_CHECKING:
    from assay.sandbox.base import ReadInputs, WriteOutputs
    from assay.types import Json

MOST, MOST_OF_ALL = 16, 256
"""Compilations of a program, and of each launch one at least: so many, and more as long as there is time."""
_RAISES = (
    "Triton's autotuner passes over a configuration that fails a tl.static_assert of the kernel itself or needs more "
    "than the GPU has. At any other failure it raises, and the kernel never runs. Leave this configuration out"
)
_CHOSEN = (
    "An earlier launch of this kernel compiles in this configuration, and is tuned: it may choose it for this launch, "
    "which is not tuned again and raises. Add to `key` what differs, or leave this configuration out"
)
KERNELS_TOLD = BLOCKS_TOLD = 64
WIDTHS_TOLD = 1024
TEXT_CHARACTERS = 2000
UNREAD = "what compiles kernels cannot make a module of this one"
TOO_LONG = (
    "the program has so many launches and configurations that what came of them has no room in a report: make fewer"
)
_WARM = """def softmax(x, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    row = tl.load(x + tl.program_id(0) * n + i, mask=i < n, other=0.0)
    row = tl.exp(row - tl.max(row, 0))
    tl.store(out + tl.program_id(0) * n + i, row / tl.sum(row, 0), mask=i < n)
"""


def preload() -> None:
    """Import Triton without PyTorch, and compile one kernel: what the compiler reads once, every child then shares."""
    ahead_of_time.do_without_torch()
    warnings.simplefilter("ignore")  # what is written to standard error is taken for the compiler's words
    header, program = {"capability": 90, "shared_limit": 232448}, json.dumps(_warm_up_program())
    report = execute(program, header, lambda: None, lambda outputs, short=False: None)
    if not report.get("kernels"):
        raise RuntimeError(f"a program of ours does not compile: {report}")
    shutil.rmtree(os.path.expanduser("~/.triton"), ignore_errors=True)


def _warm_up_program() -> Json:
    given, made = [0, "float32", [4], [1], 0], [1, "float32", [4], [1], 0]
    arguments = {"x": {"window": given}, "out": {"window": made}, "n": 4, "BLOCK": 4}
    kernel = {"name": "softmax", "source": _WARM, "names": {"tl": {"module": "triton.language"}}, "line": 1}
    launch = {"launch": 0, "line": 1, "variants": [{"grid": [1], "args": arguments, "options": {}, "before": []}]}
    return {
        **{"version": 1, "storages": [16, 16], "constants": [], "inputs": [given], "init_inputs": [], "params": []},
        **{"buffers": [], "outputs": [made], "module": [], "init": [], "forward": [launch], "differs": ""},
        **{"kept": [], "once": [], "unchanged": [], "kernels": [kernel]},
    }


def execute(source: str, header: Json, read_inputs: ReadInputs, write_outputs: WriteOutputs) -> Json:
    """Compile the launches of a program; the report is plain data of bounded size."""
    while read_inputs() is not None:
        pass
    try:
        return _report_on(source, header)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - a program of ours compiles in `preload`, so an error is this one's
        return {"unreadable": f"{UNREAD} ({type(error).__name__}: {error})"[:TEXT_CHARACTERS]}


def _report_on(source: str, header: Json) -> Json:
    program = read(source.encode("utf-8", "replace"), UNALLOCATED if header.get("read_only") else None)
    if isinstance(program, Refusal):
        return {"unreadable": program.reason[:TEXT_CHARACTERS]}
    kernels = language.parse(table_of(program))
    if not isinstance(kernels, Kernels):
        first = kernels.refusals[0]
        return {"unreadable": str(kernels)[:TEXT_CHARACTERS], "in_triton": first.in_triton}
    ahead_of_time.install(header["capability"], header["shared_limit"])
    if header.get("read_only"):
        ahead_of_time.read_only(and_lay_out=True)
    compiler = Compiler(program, kernels, header.get("enough_s", 0.0))
    compiler.compile()
    report = compiler.report() | {"stored": compiler.stored(program.forward)}
    return report if len(json.dumps(report)) < REPORT_BYTES // 2 else {"unreadable": TOO_LONG}


@dataclass(frozen=True, slots=True)
class Refused:
    """A compilation that failed. `line` is the submission's."""

    kernel: str
    line: int
    text: str
    passed_over: bool = False
    """Whether an autotuner goes on without the configuration."""


class Compiler:
    """Compiles the launches of one program."""

    def __init__(self, program: Program, kernels: Kernels, enough_s: float) -> None:
        self._enough_s = enough_s
        self.launches = [(place, step) for place, step in enumerate(program.steps) if isinstance(step, Launch)]
        self.text = language.text(kernels)
        self._lines = {
            kernel.line + place: line
            for kernel in program.kernels
            for place, line in enumerate(lines_of(kernel.source))
        }
        self._kernels = kernels
        self._module = _executed(self.text)
        begins = {one.src: get_jit_fn_file_line(one)[1] for one in map(self.function, kernels.functions)}
        self._translation = Translation(self.text, begins)
        self.outcomes: dict[str, ahead_of_time.Usage | Refused] = {}
        """What came of each compilation, by what tells it from others."""
        self._texts: dict[str, str] = {}
        """What Triton's front end read in each: `front_end.digest`, or that a tuner passes over it."""
        self._names: dict[str, str] = {}
        self._spreads: dict[str, frozenset[layouts.Spread]] = {}
        """How each spreads its accesses over threads."""
        self._sites = sites.of_text(self.text.source, self.text.names.values())
        self._unused = sites.unused(kernels.functions, self._sites)
        self._widths: dict[str, dict[tuple[int, int], int]] = {}
        """How many bytes each of its accesses moves at once."""
        self._read: set[str] = set()
        """What was read and is not refused: launches may have it in common."""
        self.lost: Refused | None = None
        """What ends it all: a launch of which no variant compiles, a variant at which its autotuner raises, or one of
        which nothing is left."""
        self.unknown: list[Refused] = []
        """What compiles, and of which the replay knows nothing."""
        self.keys = [
            [self._key(place, number) for number in range(len(launch.variants))]
            for place, (_, launch) in enumerate(self.launches)
        ]

    def function(self, key: int | str) -> Any:
        """The function that Triton compiles for a kernel."""
        return getattr(self._module, self.text.names[str(key)])

    def compile(self) -> None:
        """Compile what is chosen, and of a launch that has no variant so far the others too, until one is taken. The
        rest is only read.

        Ends early where a launch has none left or raises, or where nothing is left of a variant: a GPU may choose it.
        """
        for turn, (place, number) in enumerate(chosen(self.keys, MOST_OF_ALL)):
            if turn >= MOST and ahead_of_time.cpu_seconds() > self._enough_s:
                break
            self._compile(place, number)
            if self._is_lost(place):
                return
        for place, keys in enumerate(self.keys):
            for number in range(len(keys)):
                if not self._is_accepted(place):
                    self._compile(place, number)
            if self._is_lost(place):
                return
        ahead_of_time.read_only()
        for place, keys in enumerate(self.keys):
            for number in range(len(keys)):
                self._compile(place, number, read=True)
            if self._is_lost(place):
                return
        self.lost = next(filter(None, map(self._chosen_before, range(len(self.keys)))), None)

    def _is_accepted(self, place: int) -> bool:
        return any(isinstance(self.outcomes.get(key), ahead_of_time.Usage) for key in self.keys[place])

    def _is_lost(self, place: int) -> bool:
        found = [self.outcomes.get(key) for key in self.keys[place]]
        raising = [number for number, each in enumerate(found) if isinstance(each, Refused) and not each.passed_over]
        if raising and len(found) > 1:
            self.lost = self.lost or self._of_configuration(place, raising[0], _RAISES)
        elif isinstance(found[0], Refused) and all(isinstance(each, Refused) for each in found):
            self.lost = self.lost or found[0]
        return self.lost is not None

    def _of_configuration(self, place: int, number: int, means: str) -> Refused:
        """The refusal of a configuration, with its name and what it means."""
        refused = self.outcomes[self.keys[place][number]]
        assert isinstance(refused, Refused), "only asked of one"
        differs = difference(self.launches[place][1].variants, number)
        return replace(refused, text=f"{refused.text}\nin the configuration {differs or number}. {means}")

    def _chosen_before(self, place: int) -> Refused | None:
        """The first configuration in which a launch that is not tuned cannot be made, and which an earlier launch may
        have been tuned to: of the same kernel, in as many configurations, and this one compiles there."""
        launch, keys = self.launches[place][1], self.keys[place]
        if launch.tuning is not None or not any(isinstance(self.outcomes.get(key), Refused) for key in keys):
            return None
        tuned = [
            earlier
            for earlier, (_, other) in zip(self.keys[:place], self.launches, strict=False)
            if other.tuning is not None and other.kernel == launch.kernel and len(earlier) == len(keys)
        ]
        for number, key in enumerate(keys if tuned else ()):
            before = [self.outcomes.get(earlier[number]) for earlier in tuned]
            chosen = all(isinstance(each, ahead_of_time.Usage) for each in before)
            if chosen and isinstance(self.outcomes.get(key), Refused):
                return self._of_configuration(place, number, _CHOSEN)
        return None

    def _key(self, place: int, number: int) -> str:
        """What tells the compilation of a variant from others; one that cannot be begun is refused at once."""
        launch = self.launches[place][1]
        try:
            key = ahead_of_time.specialised(*self._call(launch, launch.variants[number]))
        except Exception as error:  # noqa: BLE001 - whatever a program makes Triton raise is data
            key = f"{place}.{number}"
            self._refuse(key, launch, error, "")
        self._names.setdefault(key, self._kernels.functions[str(launch.kernel)].name[:NAME_CHARACTERS])
        return key

    def _compile(self, place: int, number: int, read: bool = False) -> None:
        """Compile a variant, unless that is done. One that is `read` is as open as before where nothing refuses it."""
        key = self.keys[place][number]
        if key in self.outcomes or (read and key in self._read):
            return
        launch = self.launches[place][1]
        start = ahead_of_time.written()
        try:
            call = self._call(launch, launch.variants[number])
            kernel = ahead_of_time.compiled(*call)
            self._texts[key] = ahead_of_time.front_end_text()
            for what, line in ahead_of_time.unlike_text(*call, FILE, self._unused):
                self.unknown.append(self._said(launch, self._translation.origin(line), UNLIKE[what]))
            if read:
                self._read.add(key)
                return
            self._spreads[key] = ahead_of_time.spreads()
            self._widths[key] = ahead_of_time.widths(kernel, FILE, self._sites)
            self.outcomes[key] = ahead_of_time.usage(kernel)
            if fault := ahead_of_time.fault(kernel):
                self.lost = Refused(self._names[key], launch.line, fault)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - as above
            self._refuse(key, launch, error, ahead_of_time.since(start))
            asserted = front_end.PASSED_OVER if isinstance(error, CompileTimeAssertionFailure) else ""
            self._texts[key] = ahead_of_time.front_end_text() or asserted

    def _call(self, launch: Launch, variant: Variant) -> tuple[Any, dict[str, Any], dict[str, Any]]:
        """The function, its arguments and options.

        Raises:
            TypeError: an argument for a parameter that the kernel does not have.
        """
        names = self.text.parameters[str(launch.kernel)]
        if unknown := [name for name, _ in variant.args if name not in names]:
            raise TypeError(f"the launch gives {unknown[0]}, and the kernel has no parameter of that name")
        arguments = {names[name]: argument(value, self.function) for name, value in variant.args}
        return self.function(launch.kernel), arguments, dict(variant.options)

    def _refuse(self, key: str, launch: Launch, error: Exception, diagnostics: str) -> None:
        words = self._translation.words(error, diagnostics)
        said = self._said(launch, words.line, words.text[:TEXT_CHARACTERS])
        self.outcomes[key] = replace(said, passed_over=isinstance(error, PASSED_OVER))

    def _said(self, launch: Launch, line: int, text: str) -> Refused:
        """What is said of a line of the submission, and the line; of the launch's where it is 0."""
        shown = self._lines.get(line, "").strip()[:LINE_CHARACTERS]
        name = self._kernels.functions[str(launch.kernel)].name
        return Refused(name, line or launch.line, f"{text}\n    {shown}" if shown else text)

    def report(self) -> Json:
        """What came of it, as plain data."""
        accepted = [(key, each) for key, each in self.outcomes.items() if isinstance(each, ahead_of_time.Usage)]
        refused = [each for each in self.outcomes.values() if isinstance(each, Refused)]
        told = [self.lost] if self.lost is not None else refused[:1]
        lacking = [entry for place in range(len(self.launches)) if (entry := self._lacking(place)) is not None]
        return {
            "kernels": [{"name": self._names[key], **asdict(each)} for key, each in accepted[:KERNELS_TOLD]],
            "refused": [asdict(each) for each in told],
            "unknown": [asdict(each) for each in self.unknown[:1]],
            "compiled": len(accepted),
            "refusals": len(refused),
            "left_out": len({key for keys in self.keys for key in keys} - self.outcomes.keys()),
            "lost": self.lost is not None,
            "lacking": lacking[:LAUNCHES_TOLD],
            "too_many": len(lacking) > LAUNCHES_TOLD,
            "texts": [
                front_end.joined([self._texts.get(key, "") for key in keys]) for keys in self.keys[:LAUNCHES_TOLD]
            ],
            "uneven": self._uneven()[: BLOCKS_TOLD + 1],
            "widths": self._told_widths(),
            "raises": [asdict(each) for each in self._without_allocator()][:1],
        }

    def _uneven(self) -> list[Json]:
        """Blocks and storages that a launch touches, in one of its variants, with threads spread in several ways."""
        found: dict[tuple[str, tuple[int, ...], int, int], None] = {}
        for keys, (_, launch) in zip(self.keys, self.launches, strict=True):
            names = self.text.parameters[str(launch.kernel)]
            for key, variant in zip(keys, launch.variants, strict=True):
                given = [(names[name], value) for name, value in variant.args if name in names]
                storages = {name: {window.storage for window in windows_in(value)} for name, value in given}
                uneven = layouts.uneven(self._spreads.get(key, ()), storages)
                found |= {(self._names[key], shape, size, storage): None for (shape, size), storage in uneven}
        return [[name, list(shape), size, storage] for name, shape, size, storage in found]

    def _told_widths(self) -> Json:
        """Of each launch, its step and the number of a table for each of its variants, -1 where it was not compiled;
        and the tables: of each access, its number, that of the helper's call, its bytes and its line. None where
        there is too much of it."""
        if sum(map(len, self._widths.values())) > WIDTHS_TOLD:
            return None
        numbers = {key: number for number, key in enumerate(self._widths)}
        lines = {number: self.text.origins[line - 1] for (line, _), number in self._sites.items()} | {0: 0}
        keys_of = zip(self.launches, self.keys, strict=True)
        return {
            "launches": [[step, [numbers.get(key, -1) for key in keys]] for (step, _), keys in keys_of],
            "tables": [
                [[site, caller, moved, lines[site]] for (site, caller), moved in sorted(found.items())]
                for found in self._widths.values()
            ],
        }

    def _without_allocator(self) -> list[Refused]:
        """Launches for which Triton raises, since it has nobody to ask for memory that they need."""
        return [
            Refused(self._names[key], launch.line, NO_ALLOCATOR.format(usage.scratch_bytes))
            for keys, (_, launch) in zip(self.keys, self.launches, strict=True)
            for key in keys
            if isinstance(usage := self.outcomes.get(key), ahead_of_time.Usage)
            if usage.scratch_bytes and not launch.allocator
        ]

    def stored(self, steps: Sequence[Step]) -> int | None:
        """Bytes that the launches among some steps store at most, each in the variant that stores most; None where that
        is not known."""
        known = {id(launch): place for place, (_, launch) in enumerate(self.launches)}
        total = 0
        for step in steps:
            if isinstance(step, Launch):
                found = [self.outcomes.get(key) for key in self.keys[known[id(step)]]]
                bytes_of = [each.stored if isinstance(each, ahead_of_time.Usage) else None for each in found]
                each_variant = zip(step.variants, bytes_of, strict=True)
                sums = [None if most is None else math.prod(variant.grid) * most for variant, most in each_variant]
                if None in sums:
                    return None
                total += max(most for most in sums if most is not None)
        return total

    def _lacking(self, place: int) -> Json:
        """The step of a launch and the numbers of its variants that were not refused, as bits; None where none was."""
        left = [not isinstance(self.outcomes.get(key), Refused) for key in self.keys[place]]
        bits = sum(1 << number for number, one in enumerate(left) if one)
        return None if all(left) else [self.launches[place][0], bits]


def _executed(text: CompilerText) -> ModuleType:
    """The generated text as a module whose source Triton finds."""
    linecache.cache[FILE] = (len(text.source), None, lines_of(text.source), FILE)
    module = ModuleType("kernels")
    exec(compile(text.source, FILE, "exec", dont_inherit=True), module.__dict__)
    return module
