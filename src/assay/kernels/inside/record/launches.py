"""Launches of Triton, captured: bound to their parameters and noted, for every configuration of an autotuned kernel."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any

import torch
import triton
import triton.testing
from triton import knobs
from triton.runtime.autotuner import Autotuner, Heuristics
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from assay.kernels.inside.record import made
from assay.kernels.inside.record.argument_types import extents_of, options_of, parts_of, taken
from assay.kernels.inside.record.comparing import Call
from assay.kernels.inside.record.host_state import HostState
from assay.kernels.inside.record.kernels import Kernels
from assay.kernels.inside.record.reads import NotRecordableError
from assay.kernels.inside.record.tape import Tape
from assay.kernels.inside.triton.stub_driver import StubDriver, measure_nothing
from assay.types import Json

CALLED_BACK = (
    "forward does something else where functions that Triton calls (a hook of a configuration, a grid function, one of "
    "@triton.heuristics, the allocator) are called at other times. A GPU calls them for each configuration, often, "
    "while it tunes, then for the best one alone, and the allocator where a launch needs memory. Let them keep nothing "
    "that forward goes by"
)
_BEST = "best_config"
_OFTEN = 3
"""Times that each configuration runs where a tuner is taken to measure it."""
_GRID_CHANGES = (
    "the grid function of {0}() changes what the kernel is launched with, after Triton has compiled it for something "
    "else. Let it return the grid and do nothing more"
)
_MEASURES = frozenset(
    found
    for found in Autotuner.__init__.__code__.co_consts
    if isinstance(found, CodeType) and found.co_varnames[:1] == ("kernel_call",)
)
"""The functions that Triton makes of `warmup`, `rep` and `use_cuda_graph`."""


class Capture:
    """Turns launches into steps of a tape."""

    def __init__(self, tape: Tape) -> None:
        self.tape, self.kernels = tape, Kernels(tape)
        self._variants: list[Json] | None = None
        """Where the configurations of the autotuned kernel under way go."""
        self._kernel = -1
        self._tuned: dict[tuple[int, Any], Any] = {}
        """Tuners by what they need not tune for again."""
        self._left: dict[tuple[int, Any], tuple[Any, Sequence[Any]]] = {}
        """Tuners, and the configurations that are left once they have pruned, by what they prune for."""
        self.best = self.asked = 0
        """The configuration that tuners find the best, and how many there are of a tuner that was asked for it."""
        self.tunes = self.settled = False
        """Whether any kernel has several configurations; and whether tuners have chosen, and run the best alone."""
        self.repeats = 1
        """Times that a tuner runs each configuration, and with it what is called back."""

    def launch(self, function: JITFunction[Any], args: tuple[Any, ...], grid: Any, kwargs: dict[str, Any]) -> None:
        """Note one launch, or one configuration of it, as the head of `JITFunction.run` takes it."""
        kwargs["debug"] = kwargs.get("debug", function.debug) or knobs.runtime.debug
        kwargs["instrumentation_mode"] = knobs.compilation.instrumentation_mode
        for hook in function.pre_run_hooks:
            hook(*args, **kwargs)
        bound, options = taken(function, args, kwargs), options_of(function, kwargs)
        given = self._arguments(function, bound)
        known = len(self.kernels.entries)
        number = self.kernels.number(function)
        self._check(number, deep=len(self.kernels.entries) > known)
        extents = grid
        if callable(grid):  # once Triton has compiled, and with what it launches
            held = dict(bound)
            extents = grid(held)
            if held.keys() != bound.keys() or any(held[name] is not value for name, value in bound.items()):
                raise NotRecordableError(_GRID_CHANGES.format(function.__name__))
            if self._arguments(function, taken(function, args, kwargs)) != given:
                raise NotRecordableError(_GRID_CHANGES.format(function.__name__))
            self._check(number, deep=False)
        variant: Json = {
            "grid": extents_of(function.__name__, extents),
            "args": given,
            "options": options,
            "before": [],
        }
        if self._variants is None:
            self.tape.add_launch(number, [variant])
        else:
            self._kernel = number
            self._variants.append(variant)

    def _arguments(self, function: JITFunction[Any], bound: dict[str, Any]) -> Json:
        """The arguments of a launch, of which those in memory are on the GPU."""
        self._check_places(function.__name__, bound)
        return {name: self.kernels.value(value) for name, value in bound.items()}

    def _check(self, number: int, deep: bool) -> None:
        """Look at all that a launch of a kernel depends on. `deep`: for one at which it is compiled."""
        self.kernels.check_made(number)
        self.kernels.check_globals(number)
        if _state is not None:
            _state.check(deep=deep)

    def _check_places(self, kernel: str, bound: dict[str, Any]) -> None:
        """Raises ValueError, as Triton does, where a launch of forward's is given a tensor that is not on the GPU."""
        for number, (name, value) in enumerate(bound.items()):
            for found in parts_of(value):
                tensor = getattr(found, "base", found)
                if not isinstance(tensor, torch.Tensor) or not self.tape.places.strict:
                    continue
                if self.tape.places.is_pinned(tensor):
                    raise NotRecordableError(
                        f"{name} of {kernel} is pinned memory of the host, to which kernels of a program do not come: "
                        "copy it to the GPU, or make it there"
                    )
                if self.tape.places.is_away(tensor):
                    raise ValueError(
                        f"Pointer argument (at {number}, {name} of {kernel}) cannot be accessed from Triton (cpu "
                        f"tensor?): {self.tape.places.why_away(tensor)}"
                    )

    def tune(self, tuner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note one launch of an autotuned kernel, with all of its configurations."""
        made.check(tuner)
        tuner.nargs = dict(zip(tuner.arg_names, args, strict=False))
        key = id(tuner), made.key_of(tuner, kwargs)
        configurations = self._pruned(tuner, kwargs, key) if len(tuner.configs) > 1 else tuner.configs
        if len(configurations) > self.tape.limits.variants:
            raise NotRecordableError(
                f"{len(configurations)} configurations of one kernel; at most {self.tape.limits.variants} are taken"
            )
        several = len(tuner.configs) > 1
        self.tunes |= several
        best = configurations[self.best % len(configurations)]
        tuning = self._tuning(tuner, kwargs, configurations[0], key) if several and not self.settled else None
        outer, self._variants = self._variants, []
        try:
            for configuration in [best] if self.settled else configurations:
                self._configure(tuner, args, kwargs, configuration)
            tuner.nargs = None  # as Triton leaves it
            variants = self._variants
        finally:
            self._variants = outer
        self.tape.add_launch(self._kernel, variants, tuning)
        tuner.best_config = best

    def called_back(self, call: Callable[[], Call]) -> list[tuple[int | None, Call]]:
        """Calls of forward in which Triton calls functions of the submission at other times, each with the number of
        the one configuration in which tuned kernels are launched, None for all."""
        found: list[tuple[int | None, Call]] = []
        if self.tunes:
            self.repeats = _OFTEN
            found.append((None, call()))
            self.repeats, self.settled = 1, True
            for self.best in (0, -1):
                found.append((self.best, call()))
            self.best, self.settled = 0, False
        if self.tape.has_allocators:
            self.tape.asks = True
            found += [(None, call()), (None, call())]  # the second one meets what the first one left
            self.tape.asks = False
        return found

    def _pruned(self, tuner: Any, kwargs: dict[str, Any], key: Any) -> Sequence[Any]:
        """The configurations that a tuner tries for a key, which it asks for once.

        Raises:
            NotRecordableError: choosing them takes operations or launches, which a GPU makes once.
        """
        if key not in self._left:
            with self.tape.phase() as steps:
                found = tuner.prune_configs(kwargs)
            if steps:
                raise NotRecordableError(
                    f"a function of prune_configs_by of {tuner.base_fn.__name__} makes "
                    f"{steps[0].get('op', 'a launch')}, which a GPU does once and not in each call: let it choose by "
                    "shapes alone"
                )
            self._left[key] = tuner, found
        return self._left[key][1]

    def _tuning(self, tuner: Any, kwargs: dict[str, Any], configuration: Any, key: Any) -> list[list[Json]] | None:
        """What the tuner does before and after each launch that it tries, and when it is over, the first time for each
        key; None where it has tuned for the key."""
        if key in self._tuned:
            return None
        self._tuned[key] = tuner
        _check_measure(tuner)
        everything = tuner.nargs | kwargs | configuration.all_kwargs()
        return [
            self._of_hook(lambda: tuner.pre_hook(everything)),
            self._of_hook(lambda: tuner.post_hook(everything, exception=None)),
            self._of_hook(lambda: tuner.pre_hook(everything, reset_only=True)),
        ]

    def _of_hook(self, hook: Callable[[], object]) -> list[Json]:
        """The operations of a hook."""
        with self.tape.phase() as steps:
            hook()
        if any("launch" in step for step in steps):
            raise NotRecordableError("the hook of a configuration or of its tuner launches a kernel")
        return steps

    def _configure(self, tuner: Any, args: tuple[Any, ...], kwargs: dict[str, Any], configuration: Any) -> None:
        assert self._variants is not None, "only called while configurations are collected"
        made.check_configuration(tuner, configuration)
        chosen = configuration.all_kwargs()
        if conflicts := kwargs.keys() & configuration.kwargs.keys():
            raise ValueError(f"{', '.join(sorted(conflicts))}: given by the launch and by a configuration")
        hook, everything = configuration.pre_hook, {**tuner.nargs, **kwargs, **chosen}
        if vars(tuner).get("use_cuda_graph") and (hook is not None or tuner.user_defined_pre_hook):
            raise NotRecordableError(
                f"the autotuner of {tuner.base_fn.__name__} measures in a CUDA graph, and runs a hook there, in which "
                "a wait or a copy is an error: leave use_cuda_graph or the pre_hook out"
            )
        count = len(self._variants)
        for _ in range(self.repeats):
            del self._variants[count:]
            before = [] if hook is None else self._of_hook(lambda: hook(everything))
            with self.tape.phase() as steps:
                tuner.fn.run(*args, **kwargs, **chosen)
        if steps:
            raise NotRecordableError(
                f"the grid function of {tuner.base_fn.__name__}, a function of @triton.heuristics or a hook of the "
                f"kernel makes {steps[0].get('op', 'a launch')}: a GPU does that for each configuration while it "
                "tunes, and then once a launch. Do it in forward, or in the pre_hook of a configuration"
            )
        if len(self._variants) != count + 1:
            raise NotRecordableError("a configuration that launches no kernel, or several")
        self._variants[-1]["before"] = before


class _Compiled:
    """Stands for a compiled kernel where host code asks how it came out."""

    def __getitem__(self, _: object) -> Any:
        raise NotRecordableError("a launch of a kernel compiled by warmup(): launch the function itself")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotRecordableError(
            f"host code asks for the {name} of a compiled kernel, which is known where it is compiled for a GPU: "
            "choose launches by shapes, and by what torch.cuda.get_device_properties says"
        )

    def _init_handles(self) -> None:
        """Nothing to load."""


_capture: Capture | None = None
_state: HostState | None = None
"""What launches depend on, as it is before a submission is imported."""


_tuning = False
"""Whether a tuner measures, whose choice is not the host's to see."""


def begin(capture: Capture) -> None:
    """Let launches of this process go to a capture."""
    global _capture
    _capture = capture


def recorded() -> Sequence[JITFunction[Any]]:
    """The kernels that were launched, and their helpers, by number."""
    assert _capture is not None, "a recording has begun"
    return _capture.kernels.held


def install() -> None:
    """Put the capture into Triton, once per process."""
    driver.set_active(StubDriver(_measure))
    triton.testing.do_bench = triton.testing.do_bench_cudagraph = _measure
    JITFunction.run = _run
    Autotuner.run = _tune
    Autotuner.best_config = property(_best_config, _set_best_config)
    JITFunction.device_caches, Autotuner.cache = _remembered("device_caches"), _remembered("cache")
    run = Heuristics.run

    def asked(self: Any, *args: Any, **kwargs: Any) -> Any:
        made.check(self)
        return run(self, *args, **kwargs)

    Heuristics.run = asked
    made.install()


def hold() -> None:
    """Take Triton, its settings and the environment for what they have to be at each launch from now on."""
    global _state
    _state = HostState()
    _state.check(deep=True)


def _check_measure(tuner: Any) -> None:
    """Measure nothing with what a tuner measures with, which has to be Triton's own.

    Raises:
        NotRecordableError: it is the submission's, which may do anything between two launches.
        Exception: what Triton's raises of its options.
    """
    measure: Any = vars(tuner).get("do_bench", tuner._do_bench) or _measure
    options = measure.keywords if type(measure) is functools.partial and not measure.args else {}
    of_triton = (measure.func if options else measure) is _measure and options.keys() <= {"warmup", "rep"}
    if not of_triton and getattr(measure, "__code__", None) not in _MEASURES:
        raise NotRecordableError(
            f"the autotuner of {tuner.base_fn.__name__} measures by a do_bench of its own, and a program has no form "
            "for what that does. Leave it out, or give do_bench=functools.partial(triton.testing.do_bench, warmup=25, "
            "rep=100), or warmup=, rep= or use_cuda_graph="
        )
    global _tuning
    _tuning = True
    try:
        measure(lambda: None, quantiles=(0.5, 0.2, 0.8))
    finally:
        _tuning = False
    if tuner.cache_results:  # Triton writes what it found into a file
        json.dumps([vars(configuration) for configuration in tuner.configs if not configuration.pre_hook])


def _measure(*args: Any, **options: Any) -> Any:
    """Triton's benchmark, which measures nothing here: host code of a submission learns no times from it."""
    if not _tuning:
        raise NotRecordableError(
            "host code measures times by triton.testing.do_bench, which are others on each GPU: let @triton.autotune "
            "choose between configurations, or choose by shapes"
        )
    return measure_nothing(*args, **options)


def _run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
    assert _capture is not None, "a recording has begun"
    if warmup:
        return _Compiled()
    _capture.launch(self, args, grid, kwargs)
    return _Compiled()


def _tune(self: Any, *args: Any, **kwargs: Any) -> Any:
    assert _capture is not None, "a recording has begun"
    _capture.tune(self, args, kwargs)
    return _Compiled()


def _best_config(self: Any) -> Any:
    """What the host is told of the tuning of a kernel."""
    assert _capture is not None, "a recording has begun"
    if _BEST not in vars(self):
        raise AttributeError("best_config: the kernel was not launched yet")
    if not _capture.tape.places.strict:
        raise NotRecordableError(f"host code outside of forward reads best_config of {self.base_fn.__name__}")
    _capture.asked = max(_capture.asked, min(len(self.configs), _capture.tape.limits.variants))
    return vars(self)[_BEST]


def _remembered(name: str) -> property:
    """What Triton keeps from launch to launch: nothing here, where nothing is compiled or tuned."""

    def read(self: Any) -> Any:
        raise NotRecordableError(
            f"host code reads {name} of a kernel, in which Triton keeps what it has compiled or tuned and of which "
            "later launches are made: leave it alone"
        )

    return property(read, lambda self, kept: vars(self).update({name: kept}))


def _set_best_config(self: Any, found: Any) -> None:
    vars(self)[_BEST] = found
