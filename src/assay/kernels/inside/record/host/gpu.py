"""`torch.cuda` and what else of PyTorch and Python tells of the machine: what is pretended, and refusals of the rest.

    gpu.install()      once per process, after `pretend_cuda.install`

What is pretended stands in tables. Whatever else these modules have is refused as soon as it is called, since it would
say something else on a GPU, or do what a program has no form for.
"""

from __future__ import annotations

import _thread
import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any, NoReturn

import torch

from assay.kernels.inside.pretend_cuda import UsingStream, use_stream
from assay.kernels.inside.record import streams
from assay.kernels.inside.record.host import draws
from assay.kernels.inside.record.places import HOST, device_named
from assay.kernels.inside.record.reads import HostReadError, NotRecordableError
from assay.kernels.inside.record.streams import gpu_named

_CLOSED = ("torch.cuda", "torch.accelerator", "torch.jit")
"""Modules, with all under them, whose functions and classes are refused unless they are named here."""
_OPEN = ("torch.cuda.amp", "torch.cuda.nvtx", "torch.cuda._")
_KEPT = frozenset(
    {
        *("is_available", "is_initialized", "is_bf16_supported", "init", "device_count", "current_device"),
        *("empty_cache", "default_stream", "set_stream", "Event", "Stream", "is_tf32_supported"),
        *("reset_peak_memory_stats", "current_stream", "DeferredCudaCallError", "ipc_collect"),
        *("ignore", "unused", "export", "is_scripting", "is_tracing", "annotate", "isinstance", "Final", "Attribute"),
        *("ScriptModule", "ScriptFunction", "RecursiveScriptModule", "TracedModule", "TopLevelTracedModule"),
    }
)
"""What is pretended elsewhere, or says and does the same everywhere. Classes of scripts are there to ask what something
is; there are no objects of them."""
_ADVICE = {
    "rng_state": "no program has a generator of a GPU: draw on the host, from the caller's seed",
    "graph": "a CUDA graph repeats launches that forward should make: make them in each call, without a graph",
    "memory": "how much memory there is differs between GPUs and calls: choose by shapes",
    "profiler": "what it shows is what records host code, and not what a GPU does: leave it out",
    "seed": "which seed its caller has set is for the caller to decide: leave it out",
    "backward": "forward is recorded without gradients, and hooks run where no recording sees them: leave it out",
    "jit": "TorchScript is run where no recording sees it, and sees other devices there: write plain Python",
    "tensor": "make tensors by torch.empty(shape, dtype=..., device=x.device)",
    "": "a GPU would answer otherwise than the machine where host code is recorded: leave it out",
}
"""Part of a name -> what to do instead."""
_COMPILED = "torch.compile writes kernels of its own, and only those of the source are graded: leave it out"
_THREADS = (
    "host code starts a thread, in which no recording sees what is done: launch from the thread that calls forward"
)
_PROFILERS = (
    *(("torch.profiler", name) for name in ("profile", "_KinetoProfile")),
    *(("torch.autograd.profiler", name) for name in ("profile", "emit_itt", "emit_nvtx", "_KinetoProfile")),
)
_DATA = (bool, int, float, str, tuple, list, dict, set)
_SEEDS = ("initial_seed", "seed")
CUDA_VERSION, _BUILD = "12.8", "+cu128"


def install() -> None:
    """Replace what tells of the machine, for the rest of this process."""
    pretended = _pretended()  # of functions that are closed next
    for module in [module for name, module in list(sys.modules.items()) if _is_closed(name)]:
        _close(module)
        _close_data(module)
    _close_generator()
    # Whoever takes part in a call of these is not told of an argument.
    torch.functional.chain_matmul = torch.chain_matmul = _refusing("torch.chain_matmul", "call torch.linalg.multi_dot")
    torch.Tensor.dim_order = _dim_order  # type: ignore[method-assign, assignment]
    for owner in (torch, torch.utils.dlpack):
        vars(owner)["to_dlpack"] = _refusing("to_dlpack", _ADVICE["tensor"])
    for owner in (torch.autograd, torch.autograd.graph):
        for name in ("backward", "grad", "_engine_run_backward"):
            if hasattr(owner, name):
                setattr(owner, name, _refusing(f"torch.autograd.{name}", _ADVICE["backward"]))
    torch.autograd.graph.saved_tensors_hooks.__enter__ = _enter_hooks(torch.autograd.graph.saved_tensors_hooks)  # type: ignore[method-assign]
    for home, name in _PROFILERS:
        setattr(sys.modules[home], name, _refused_class(f"{home}.{name}", _ADVICE["profiler"]))
    for module, names in pretended.items():
        for place in _places_of(module):
            for name, value in names.items():
                if place is module or hasattr(place, name):
                    setattr(place, name, value)
    torch.compile = _compile
    torch.Stream = torch.Event = _refused_class("torch.Stream", "use torch.cuda.Stream and torch.cuda.Event")  # type: ignore[misc, assignment]
    torch.version.cuda = CUDA_VERSION
    torch.__version__ = type(torch.__version__)(torch.__version__.partition("+")[0] + _BUILD)
    torch.__config__.show = _refusing("torch.__config__.show", _ADVICE[""])
    torch.Generator = _Generator  # type: ignore[misc]
    torch.backends.cudnn.version = _refusing("torch.backends.cudnn.version", _ADVICE[""])
    torch.backends.cuda.is_built = lambda: True
    torch.backends.cudnn.is_available = lambda: True
    torch.Tensor.record_stream = _record_stream  # type: ignore[method-assign, assignment]
    for kind in (torch.Tensor, torch.nn.Parameter):
        kind.__reduce_ex__ = _pickled  # type: ignore[method-assign]
    for shown in (streams.Stream, streams.Event):
        shown.__module__ = "torch.cuda.streams"
    refused = _refusing("threading", _THREADS)
    for module, name in ((_thread, "start_new_thread"), (_thread, "start_new"), (_thread, "start_joinable_thread")):
        if hasattr(module, name):
            setattr(module, name, refused)
    for name in ("_start_new_thread", "_start_joinable_thread"):
        if hasattr(threading, name):
            setattr(threading, name, refused)


def _compile(model: Any = None, *, disable: bool = False, **_: Any) -> Any:
    if not disable:
        raise NotRecordableError(_COMPILED)
    return model if model is not None else lambda function: function


def _is_closed(name: str) -> bool:
    return (name in _CLOSED or name.startswith(tuple(f"{root}." for root in _CLOSED))) and not name.startswith(_OPEN)


def _places_of(module: ModuleType) -> list[ModuleType]:
    """A module and those under it, which have its functions too."""
    under = [found for name, found in list(sys.modules.items()) if name.startswith(f"{module.__name__}.")]
    return [module, *(found for found in under if isinstance(found, ModuleType))]


def _close(module: ModuleType) -> None:
    for name, value in list(vars(module).items()):
        home = getattr(value, "__module__", None)
        ours = isinstance(home, str) and home.startswith(_CLOSED)
        if name.startswith("_") or name in _KEPT or not callable(value) or not ours:
            continue
        if isinstance(value, type) and issubclass(value, BaseException):
            continue
        full = f"{module.__name__}.{name}"
        advice = next(text for part, text in _ADVICE.items() if part in full.lower())
        setattr(module, name, _refused_class(full, advice) if isinstance(value, type) else _refusing(full, advice))


def _close_data(module: ModuleType) -> None:
    """Refuse what a module has beside functions and classes, such as whether PyTorch was built with a library."""
    names = {name for name, value in vars(module).items() if not name.startswith("_") and isinstance(value, _DATA)}
    before = vars(module).get("__getattr__")

    def refused(name: str) -> Any:
        if name in names:
            raise NotRecordableError(f"{module.__name__}.{name}: {_ADVICE['']}")
        if before is not None:
            return before(name)
        raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")

    for name in names:
        delattr(module, name)
    if names:
        vars(module)["__getattr__"] = refused


def _close_generator() -> None:
    """Refuse what tells of the caller's seed. Host code may set one, which the draws after it show."""
    generator = _Seeded(draws.GENERATOR)
    for module in (torch, torch.random, torch._C):
        for name in _SEEDS:
            if hasattr(module, name):
                setattr(module, name, _refusing(f"torch.{name}", _ADVICE["seed"]))
        vars(module)["default_generator"] = generator


def _refusing(name: str, advice: str) -> Callable[..., NoReturn]:
    def refused(*_: Any, **__: Any) -> NoReturn:
        raise NotRecordableError(f"{name}: {advice}" if name not in advice else advice)

    return refused


def _enter_hooks(kind: Any) -> Callable[[Any], Any]:
    enter = kind.__enter__

    def entering(hooks: Any) -> Any:
        """Only checkpoints' own, which nothing asks for without gradients."""
        if type(hooks) is kind or not type(hooks).__module__.startswith("torch.utils.checkpoint"):
            raise NotRecordableError(f"torch.autograd.graph.saved_tensors_hooks: {_ADVICE['backward']}")
        return enter(hooks)

    return entering


def _refused_class(name: str, advice: str) -> type:
    """A class of which nothing can be made, and of which nobody learns whether something is one."""
    refuse = _refusing(name, advice)
    kind = type("_Refused", (type,), {"__call__": refuse, "__instancecheck__": refuse, "__subclasscheck__": refuse})
    return kind(name.rpartition(".")[2], (), {})  # type: ignore[no-any-return]


class _Generator(torch.Generator):
    """A generator of the host: no program has one of a GPU."""

    def __new__(cls, device: Any = "cpu") -> Any:
        if device_named(device) != HOST:
            raise NotRecordableError("a generator on a GPU: the replay draws by the default one, on the host")
        return super().__new__(cls)


class _Seeded:
    """The default generator, or a copy of it: it may be seeded, and is not asked what it was seeded with."""

    def __init__(self, generator: torch.Generator) -> None:
        self.__generator = generator

    def clone_state(self) -> _Seeded:
        """A copy."""
        return _Seeded(self.__generator.clone_state())

    def graphsafe_get_state(self) -> _Seeded:
        """Another one of the same state."""
        return _Seeded(self.__generator.graphsafe_get_state())

    def __getattr__(self, name: str) -> Any:
        if name in _SEEDS:
            return _refusing(f"default_generator.{name}", _ADVICE["seed"])
        return getattr(self.__generator, name)


class _OnDevice:
    """`torch.cuda.device` and `device_of`: there is one GPU, and it is the current one."""

    def __init__(self, device: Any) -> None:
        self.idx, self.prev_idx = gpu_named(device), -1

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


class _Properties:
    """What `torch.cuda.get_device_properties` says, and nothing that differs between GPUs of one kind."""

    def __init__(self, known: Mapping[str, Any]) -> None:
        vars(self).update(known)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotRecordableError(f"{name} of a GPU differs between GPUs of one kind: leave it out")

    def __repr__(self) -> str:
        raise NotRecordableError("the text of all that a GPU says differs between GPUs of one kind: leave it out")

    __str__ = __reduce_ex__ = __repr__  # type: ignore[assignment]


def _device_of(obj: torch.Tensor) -> _OnDevice:
    return _OnDevice(None if obj.is_cuda else -1)


def _set_device(device: Any) -> None:
    if device is None or (isinstance(device, str | torch.device) and torch.device(device).index is None):
        raise ValueError(f"Expected a torch.device with a specified index or an integer, but got: {device}")
    gpu_named(device)


def _set_accelerators_stream(stream: Any) -> None:
    """`torch.accelerator.set_stream`, which takes streams alone."""
    if stream is None:
        raise TypeError("set_stream(): argument 'stream' must be a Stream, not NoneType")
    use_stream(stream)


def _asked(answer: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A function that is asked of a GPU."""

    def asked(device: Any = None) -> Any:
        gpu_named(device)
        return answer()

    asked.__name__ = asked.__qualname__ = name
    return asked


def _record_stream(tensor: torch.Tensor, stream: Any) -> None:
    if not isinstance(stream, streams.Stream) or not tensor.is_cuda:
        raise RuntimeError(f"record_stream of a tensor on {tensor.device} by a {type(stream).__name__:.80}")
    with torch._C.DisableTorchFunction():
        streams.order.recorded(tensor.untyped_storage()._cdata, stream)


_order_of_dimensions: Any = torch.Tensor.dim_order


def _dim_order(tensor: torch.Tensor, *, ambiguity_check: bool | list[torch.memory_format] = False) -> tuple[int, ...]:
    if ambiguity_check:
        raise NotRecordableError("dim_order with ambiguity_check: leave that out")
    return _order_of_dimensions(tensor)  # type: ignore[no-any-return]


def _pickled(tensor: torch.Tensor, _: Any) -> NoReturn:
    raise HostReadError("a copy of a tensor by pickle, torch.save or copy.copy")


class _Untold:
    """What depends on who listens: it may be dropped, and asked for nothing."""

    def _refused(self, *_: object) -> NoReturn:
        raise NotRecordableError("what torch.cuda.nvtx gives back depends on who listens: leave it unused")

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __hash__ = __bool__ = __int__ = __index__ = _refused
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __mod__ = __neg__ = __float__ = _refused
    __str__ = __repr__ = __format__ = __reduce_ex__ = _refused
    __getattr__ = _refused


def _seeded(seed: int) -> None:
    if not -(2**63) <= int(seed) < 2**64:
        raise RuntimeError("Overflow when unpacking long long")
    draws.move_on()


def _pushed(msg: str) -> _Untold:
    _marked(msg)
    return _Untold()


def _popped() -> _Untold:
    return _Untold()


def _marked(msg: str) -> None:
    if not isinstance(msg, str):
        raise TypeError(f"a mark is a str, not a {type(msg).__name__:.80}")


@contextlib.contextmanager
def _range(msg: str, *args: Any, **kwargs: Any) -> Iterator[None]:
    msg.format(*args, **kwargs)
    yield


_TOLD = ("get_device_capability", "get_device_name")


def _pretended() -> dict[ModuleType, dict[str, Any]]:
    properties = _Properties(vars(torch.cuda.get_device_properties(0)))
    asked = {
        name: _asked(getattr(torch.cuda, name), name) for name in ("synchronize", "current_stream", "default_stream")
    }
    return {
        torch.cuda: {
            **asked,
            **{"device": _OnDevice, "device_of": _device_of, "set_device": _set_device},
            **{"stream": UsingStream, "StreamContext": UsingStream, "set_stream": use_stream},
            "get_device_properties": _asked(lambda: properties, "get_device_properties"),
            **{name: _asked(getattr(torch.cuda, name), name) for name in _TOLD},
            **{"is_current_stream_capturing": lambda: False},
            **{name: lambda: None for name in ("empty_cache", "ipc_collect")},
            **dict.fromkeys(("manual_seed", "manual_seed_all"), _seeded),
        },
        torch.cuda.nvtx: {
            **{"range_push": _pushed, "range_pop": _popped, "mark": _marked, "range": _range},
            **{name: _refusing(f"torch.cuda.nvtx.{name}", _ADVICE[""]) for name in ("range_start", "range_end")},
        },
        torch.accelerator: {
            **{"is_available": lambda: True, "device_count": lambda: 1, "current_device_index": lambda: 0},
            "current_accelerator": lambda check_available=False: torch.device("cuda"),
            "current_stream": asked["current_stream"],
            **{"synchronize": asked["synchronize"], "set_stream": _set_accelerators_stream},
        },
    }
