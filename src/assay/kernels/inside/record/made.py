"""Kernels, tuners and heuristics as Triton's decorators made them, compared at each launch.

Triton compiles a kernel from what its decorator kept: text, parameters, options. Host code can set each later, and
more beside it. A launch is recorded only of what is as it was made.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any

import torch
from triton.language.core import constexpr
from triton.runtime.autotuner import Autotuner, Config, Heuristics
from triton.runtime.jit import JITFunction, KernelParam

from assay.kernels.inside.record import host_state
from assay.kernels.inside.record.reads import NotRecordableError, plain_dict

_LATER: dict[type, frozenset[str]] = {
    JITFunction: frozenset({"hash", "used_global_vals", "pre_run_hooks"}),
    Autotuner: frozenset({"nargs", "best_config", "configs_timings", "bench_time", "restore_copies", "do_bench"}),
    Heuristics: frozenset(),
}
"""What Triton sets after an object was made, by class. The hash of a kernel is looked at on its own, and hooks are
called while a launch is recorded."""
_OF_PARAMETERS = ("num", "_param", "do_not_specialize", "do_not_specialize_on_alignment")
_OF_CONFIGS = frozenset(vars(Config({})))
_KEYS = frozenset({bool, int, float, str, type(None), torch.dtype})
"""What a kernel may be tuned for, besides tensors: objects that are equal by what they are."""
_EXACT = frozenset({bool, int, str, bytes, type(None)})
"""Classes of which equal objects are the same to Triton."""
_born: dict[int, tuple[Any, dict[str, Any]]] = {}
"""Objects and their attributes as they were when they were made, by id: held, so that an id stays one object's."""
_checked: dict[int, int] = {}
"""The number that told changes of an object's attributes when they were last compared."""
_fresh: dict[int, tuple[KernelParam, tuple[Any, ...], KernelParam]] = {}
"""Parameters, what they were made of, and another one that was made of the same."""


def install() -> None:
    """Take note of what Triton's decorators make from now on."""
    for kind in _LATER:
        kind.__init__ = _noting(kind, kind.__init__)  # type: ignore[misc]


def _noting(kind: type, make: Callable[..., None]) -> Callable[..., None]:
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        if id(self) in _born:  # made a second time: launches before it were of something else
            _born[id(self)] = self, {}
        else:
            _born[id(self)] = self, {name: _attribute(name, value) for name, value in vars(self).items()}

    return made


def check(found: Any) -> None:
    """Compare a kernel, a tuner or heuristics with what its decorator made.

    Raises:
        NotRecordableError: it is not that.
    """
    later = _LATER.get(type(found))
    held, before = _born.get(id(found), (None, {}))
    if later is None or held is not found:
        raise _other(found, f"is a {type(found).__name__} that no decorator of Triton's made")
    now = plain_dict(found, f"the launched {getattr(found, '__name__', type(found).__name__):.80}")
    if now.get("_repr") is not None:
        raise _other(found, "has a repr=, which runs where it is compiled")
    # What it holds was looked at before its first launch, and is compiled by then.
    stays = type(found) is JITFunction and host_state.TELLS_CHANGES
    if stays and _checked.get(id(found)) == host_state.version(now):
        return
    for name in before.keys() | now.keys():
        if name not in later and (name not in before or name not in now or _attribute(name, now[name]) != before[name]):
            raise _other(found, f"has another {name}")
    if type(found) is JITFunction and (now["hash"] is not None or now["used_global_vals"]):
        _check_hash(found)
    if stays:
        _checked[id(found)] = host_state.version(now)


def _check_hash(found: JITFunction[Any]) -> None:
    """Triton looks kernels up under their hash on disk: it has to be this kernel's."""
    again = object.__new__(JITFunction)
    vars(again).update(vars(found), hash=None, used_global_vals={})
    if again.cache_key != found.hash or again.used_global_vals != found.used_global_vals:
        raise _other(found, "has another hash")


def check_text(found: JITFunction[Any], lines: Sequence[str]) -> None:
    """Compare the text of a kernel with the file that it says it comes from, and what is compiled with the text.

    Args:
        lines: Of the file, as far as it is the submission's; none for another one.

    Raises:
        NotRecordableError: they differ.
    """
    first, text = found.starting_line_number - 1, "".join(found.raw_src)
    start = re.search(r"^def\s+\w+\s*\(", dedented := textwrap.dedent(text), re.MULTILINE)
    if start is None or found.src != dedented[start.start() :]:
        raise _other(found, "is compiled from another text than its own")
    if lines and "".join(lines[first : first + len(found.raw_src)]).rstrip("\n") != text.rstrip("\n"):
        raise _other(found, "has another text than the submission's lines")


def check_configuration(tuner: Any, found: Any) -> None:
    """Raises NotRecordableError where a configuration is not one of Triton's."""
    if type(found) is not Config or plain_dict(found, "a triton.Config").keys() != _OF_CONFIGS:
        raise _other(tuner, "is tuned with what is no plain triton.Config")


def _attribute(name: str, value: Any) -> Any:
    """An attribute as it is compared. What the globals of a kernel hold is looked at by the names in its text."""
    return id(value) if name == "__globals__" else frozen(value)


def frozen(value: Any) -> Any:
    """What is compared of a value: the parts of what host code can change in place, and which object others are."""
    kind = type(value)
    if kind in _EXACT:
        return kind, value
    if isinstance(value, bool | int | float | str | bytes):
        return kind, repr(value)
    if isinstance(value, list | tuple):
        return type(value), tuple(map(frozen, value))
    if isinstance(value, dict):
        made = getattr(value, "default_factory", None)
        return type(value), made, tuple((frozen(key), frozen(part)) for key, part in value.items())
    if isinstance(value, inspect.Signature):
        return id(value), tuple(map(frozen, value.parameters.values()))
    if isinstance(value, inspect.Parameter):
        return value.name, value.kind, frozen(value.default), id(value.annotation)
    if isinstance(value, KernelParam):
        return _parameter(value)
    if isinstance(value, constexpr):
        return type(value), frozen(value.value)
    if isinstance(value, Config):
        own = plain_dict(value, "a triton.Config")
        return type(value), tuple((name, frozen(part)) for name, part in own.items())
    if isinstance(value, FunctionType):
        return id(value), id(value.__code__), id(value.__closure__)
    return id(value)


def _parameter(value: KernelParam) -> Any:
    """A parameter of a kernel; what it keeps of what was asked has to be what it would say anew."""
    kept = plain_dict(value, "a kernel's parameter")
    own = tuple(kept[name] for name in _OF_PARAMETERS)
    held, before, fresh = _fresh.get(id(value), (None, (), None))
    if held is not value or any(one is not other for one, other in zip(before, own, strict=True)):
        fresh = KernelParam(*own)
        _fresh[id(value)] = value, own, fresh
    right = type(value) is KernelParam and all(
        name in _OF_PARAMETERS or (hasattr(fresh, name) and frozen(getattr(fresh, name)) == frozen(part))
        for name, part in kept.items()
    )
    return right, tuple(map(frozen, own))


def _other(found: Any, how: str) -> NotRecordableError:
    name = getattr(getattr(found, "base_fn", found), "__name__", type(found).__name__)
    return NotRecordableError(
        f"the launched {name} {how}: a GPU would run something else than was recorded. Launch what @triton.jit, "
        "@triton.autotune or @triton.heuristics made, and set nothing on it afterwards"
    )


def key_of(tuner: Any, kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """What a tuner tunes for once, as Triton looks it up: 1, 1.0 and True are one key, "1" is another, and NaN and
    tensors equal themselves alone.

    Raises:
        NotRecordableError: an object of a class that may say anything of what it equals.
    """
    given = {name: value for name, value in {**tuner.nargs, **kwargs}.items() if name in tuner.arg_names}
    key = [given[name] for name in tuner.keys if name in given]
    for value in key:
        hashes: object = type(value).__hash__
        if type(value) not in _KEYS and hashes is not torch.Tensor.__hash__:
            raise NotRecordableError(
                f"{tuner.base_fn.__name__} is tuned for each {type(value).__name__:.80}, and whether two of them are "
                "the same is for that class to say: let `key` name numbers, texts or dtypes"
            )
    return *key, *(str(value.dtype) for value in given.values() if hasattr(value, "dtype"))
