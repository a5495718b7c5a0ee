"""The interpreter's builder with error bounds: each method has a rule, or its result may be anything.

`switch` chooses the builder of a launch. Calls without bounds pay nothing for this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from triton.runtime import interpreter as engine

from assay.kernels.inside.triton.error_bounds import accesses, choices, functions, reducing, sharing, sums, threads
from assay.kernels.inside.triton.error_bounds.bounds import bound, carries, give, named, or_zero, wide
from assay.kernels.inside.triton.error_bounds.memory import UNKNOWN, Bounds
from assay.kernels.inside.triton.ledger import current
from assay.kernels.inside.triton.libdevice import LIBRARY

_plain: Any = engine.InterpreterBuilder
_bounded: Any = None

_CERTAIN: dict[str, int | None] = {
    **dict.fromkeys(("create_tensor_pointer_load", "create_descriptor_load", "create_make_block_ptr"), None),
    **dict.fromkeys(("create_advance", "create_make_tensor_descriptor", "create_descriptor_gather"), None),
    **dict.fromkeys(("create_tensor_pointer_store", "create_descriptor_store", "create_descriptor_scatter"), 1),
}
"""Methods whose operands must be certain, and which of them need not be."""
_INNER = frozenset(
    {
        *("create_load", "create_store", "create_si_to_fp", "create_ui_to_fp", "create_fp_ext", "create_fp_trunc"),
        *("create_int_cast", "create_barrier", "create_print", "create_int_to_ptr", "create_ptr_to_int", "create_cat"),
        *(
            "create_make_range",
            "create_get_program_id",
            "create_get_num_programs",
            "create_inline_asm",
            "create_assert",
            "create_assume",
        ),
    }
)
"""Methods that call others, which have the rules, or give nothing inexact, or are refused."""
RULES: dict[str, Callable[..., Any]] = {
    **functions.OF_FRACTIONS,
    **choices.OF_CHOICES,
    **choices.OF_CASTS,
    "create_dot": sums.matrices,
    "create_histogram": sums.counted,
    "create_gather": choices.gathered,
    "create_umulhi": choices.anything,
}
_LANE_BY_LANE = functions.OF_FRACTIONS.keys() | choices.OF_CHOICES.keys() | choices.OF_CASTS.keys()
_ALWAYS = functions.ALWAYS | {"create_dot", "create_add", "create_bitcast"}
"""Methods whose results may be inexact though all operands are exact, or have a loss to note."""
_NAMED = functions.ALWAYS | {"create_dot"}
"""Methods whose results have an error of their own, which what is made of them shares."""
_SUMS = frozenset({"create_fadd", "create_fsub", "create_fma"})
"""Methods that may take a product before it is rounded, or lose what another order would (`Ledger.any_order`)."""
_WITHOUT_LOSS = frozenset({"create_fmul", "create_addptr"})


def names() -> Iterator[str]:
    """The methods of the builder that take or give values."""
    return (name for name in dir(_plain) if name.startswith("create_") or name == "cast_impl")


def _own() -> dict[str, Any]:
    """Methods that are written here rather than ruled."""
    return {
        **{f"create_{name}": sharing.moving(f"create_{name}") for name in sharing.MOVES},
        **{name: accesses.of_certain(name, value=value) for name, value in _CERTAIN.items()},
        "create_join": sharing.join,
        "create_split": sharing.split,
        "create_clampf": _clamp,
        "create_extern_elementwise": _library,
        "create_masked_load": accesses.load,
        "create_masked_store": accesses.store,
        "create_atomic_rmw": accesses.rmw,
        "create_atomic_cas": accesses.cas,
    }


def without_rule() -> list[str]:
    """Methods of which nobody has said what they do to bounds; their results may be anything."""
    return sorted({*names()} - RULES.keys() - _INNER - _own().keys())


def install() -> None:
    """Make the builder that has bounds, after all else that changes the interpreter."""
    global _bounded
    ruled = {name: _ruled(name, RULES.get(name, choices.anything)) for name in names() if name not in _INNER}
    _bounded = type("Bounded", (_plain,), ruled | _own())
    reducing.install()


def switch(bounded: bool) -> None:
    """Use the builder with bounds, or the plain one."""
    engine.interpreter_builder.__class__ = _bounded if bounded else _plain


def decide(handle: Any) -> None:
    """A value decides where the program goes."""
    if current().bounds is not None and bound(handle) is not None:
        accesses.refuse_undecided()


def _handles(args: Any) -> list[Any]:
    return [arg for arg in args if type(arg) is engine.TensorHandle]


def _ruled(name: str, rule: Callable[..., Any]) -> Callable[..., Any]:
    always, cast, compares = name in _ALWAYS, name in choices.OF_CASTS, rule is choices.compared
    adds, by_lanes = name in _SUMS, name in _LANE_BY_LANE

    def operation(self: Any, *args: Any, **options: Any) -> Any:
        found, noted = getattr(_plain, name)(self, *args, **options), accesses.bounds()
        if by_lanes:
            threads.combined(found, args)
            sharing.note_twins(found, args, fused=adds and current().fuses)
        known = [arg for arg in args if type(arg) is engine.TensorHandle and arg.attr and carries(arg)]
        if cast:
            bits = name == "create_bitcast"
            if not bits:  # which converts no value
                choices.note_whole(found, args[0])
                choices.keep_within_bytes(found, args[0])
            if current().fuses:
                sharing.keep_loss_of_cast(found, args[0], bits=bits)
        if not (always or known or (adds and current().any_order)) and noted.unspecified is None:
            return found
        operands = _handles(args)
        limits: Any = None
        if always or adds or (cast and known) or any(bound(operand) is not None for operand in known):
            limits = rule(found, *_given(name, args, operands), **options)
        limits, shared = limits if type(limits) is tuple else (limits, None)
        give(found, _specified(noted, limits), shared)
        if name in _NAMED:
            named(found)
        for operand in () if cast else known:
            sharing.keep_origin(found, operand)
            if name not in _WITHOUT_LOSS:
                sharing.keep_loss(found, operand)
        if compares and bound(found) is not None:
            noted.decided()
        return found

    return operation


def _given(name: str, args: tuple[Any, ...], operands: list[Any]) -> Any:
    """What a rule is given: operands, and what else it asks for."""
    if name == "create_dot":
        return args[:4]
    if name in choices.OF_CASTS:
        return args[:1] + tuple(arg for arg in args[1:] if isinstance(arg, engine._ir.ROUNDING_MODE))
    return args if name in ("create_gather", "create_histogram") else operands


def _specified(noted: Bounds, limits: Any) -> Any:
    """The bound of a result, with what has no value."""
    lanes, noted.unspecified = noted.unspecified, None
    return limits if lanes is None else np.where(lanes, UNKNOWN, or_zero(limits))


def _clamp(self: Any, *args: Any, **options: Any) -> Any:
    """Made of extremes, which have their rules."""
    found, noted = _plain.create_clampf(self, *args, **options), accesses.bounds()
    return found if noted.unspecified is None else give(found, _specified(noted, bound(found)))


def _library(self: Any, name: str, path: str, symbol: str, args: Any, result: Any, pure: bool) -> Any:
    found = _plain.create_extern_elementwise(self, name, path, symbol, args, result, pure)
    threads.combined(found, args)
    sharing.note_twins(found, args)
    if found.dtype.scalar.is_floating():
        limits = functions.of_library(symbol)(found, *args)
    elif all(bound(arg) is None for arg in args):
        limits = None
    else:
        limits = functions.spread(symbol, LIBRARY[symbol], wide(found), args)
    limits, shared = limits if type(limits) is tuple else (limits, None)
    limits = functions.of_signs(symbol, found, args, limits)
    give(found, _specified(accesses.bounds(), limits), shared)
    named(found)
    for operand in args:
        sharing.keep_origin(found, operand)
        sharing.keep_loss(found, operand)
    return found
