"""Other values of a model's weights, as training would leave them, and further off."""

from __future__ import annotations

import torch

from assay.kernels.base import Manner

FLIPPED, GROWN = 0.25, 0.125
"""Share of elements that change their sign, and of those that grow, where weights are moved far."""
GROWTH, GROWTH_OF_MATRICES = 10.0, 2.0
"""By how much they grow; less where a model has matrices, whose products would leave what training leads to, but for
single numbers (a temperature)."""

SPREAD = 0.25
"""How far zeros are moved by those that move elements by factors, at most."""
FACTOR = 2.0
"""The largest of those factors."""


def is_constant(weight: torch.Tensor) -> bool:
    """Whether all elements of a parameter are equal."""
    return weight.numel() > 0 and bool((weight == weight.flatten()[0]).all())


def is_fraction(tensor: torch.Tensor) -> bool:
    """Whether its elements are real or complex fractions, and no whole numbers."""
    return tensor.is_floating_point() or tensor.is_complex()


def movable_buffers(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The buffers of a state that hold finite fractions."""
    kept = model.state_dict()
    return {
        name: buffer
        for name, buffer in model.named_buffers()
        if name in kept and is_fraction(buffer) and bool(buffer.isfinite().all())
    }


def constant_buffers(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Those that hold one number everywhere (running statistics, say)."""
    return {name: buffer for name, buffer in movable_buffers(model).items() if is_constant(buffer)}


def growth_of(model: torch.nn.Module) -> float:
    """By how much some of a model's weights grow where they are moved far."""
    return GROWTH_OF_MATRICES if any(weight.dim() > 1 for weight in model.parameters()) else GROWTH


def move(weight: torch.Tensor, growth: float = 0.0, turned: bool = True) -> None:
    """Move every element at random, in place, both parts of complex ones. With a `growth` far: some, one at least, are
    so much larger, and with `turned` some change their sign. What is sorted stays so. Infinite elements (of a mask)
    stay infinite; with a `growth` the rows that have any change places."""
    if not is_fraction(weight):
        _move_whole(weight)
        return
    weight = torch.view_as_real(weight) if weight.is_complex() else weight
    if not (finite := weight.isfinite()).all():
        part = weight[finite]
        move(part, growth, turned)
        weight[finite] = part
        if growth and weight.dim() > 1:
            weight.copy_(weight[..., torch.randperm(weight.shape[-2], device=weight.device), :])
        return
    order = _order_of(weight)
    spread = 0.1 * (weight.std() if weight.numel() > 1 else weight.abs().mean()) + 0.05
    weight.mul_(1 + 0.25 * (2 * torch.rand_like(weight) - 1)).add_(spread * torch.randn_like(weight))
    growth = GROWTH if growth and weight.numel() == 1 else growth
    if growth:
        if turned:
            weight.mul_(torch.where(torch.rand_like(weight) < FLIPPED, -1.0, 1.0).to(weight.dtype))
        weight.mul_(_growths(weight, growth))
    if order:
        weight.copy_(weight.sort(descending=order < 0).values)


def move_in_manner(weight: torch.Tensor, manner: Manner, growth: float = 0.0) -> None:
    """Move every element of a weight whose domain ends (a scale, of which a root is taken), at random and in place.

    `scaled`: by factors, so that signs stay; zeros become positive. `larger`: the same, by factors from 1 on. `within`:
    to between two elements of the same weight; where all are one number closer to zero, or below it. With a `growth`
    some, one at least, become so much larger as well, but for those that stay `within`.
    """
    if not is_fraction(weight):
        _move_whole(weight)
        return
    weight = torch.view_as_real(weight) if weight.is_complex() else weight
    finite = weight.isfinite()
    part = weight[finite]
    order = _order_of(weight)
    moved = _within(part) if manner == "within" else _by_factors(part, manner, growth)
    weight[finite] = moved
    if order:
        weight.copy_(weight.sort(descending=order < 0).values)


def _within(part: torch.Tensor) -> torch.Tensor:
    if is_constant(part):
        return torch.where(part == 0, -SPREAD * _above_zero(part), part * (1 - 0.25 * _above_zero(part)))
    one, other = (part[torch.randperm(part.numel(), device=part.device)] for _ in range(2))
    return torch.lerp(one, other, torch.rand_like(part))


def _by_factors(part: torch.Tensor, manner: Manner, growth: float) -> torch.Tensor:
    exponents = _above_zero(part) if manner == "larger" else 2 * _above_zero(part) - 1
    moved = torch.where(part == 0, SPREAD * _above_zero(part), part * FACTOR**exponents)
    return moved * _growths(moved, growth) if growth else moved


def _above_zero(like: torch.Tensor) -> torch.Tensor:
    """Random numbers above 0 and up to 1."""
    return 1 - torch.rand_like(like)


def _growths(weight: torch.Tensor, growth: float) -> torch.Tensor:
    """Factors of which some, one at least, are `growth`, and the others 1."""
    grown = torch.rand_like(weight) < GROWN
    if grown.numel():
        grown.view(-1)[int(torch.randint(grown.numel(), ()))] = True
    return torch.where(grown, growth, 1.0).to(weight.dtype)


def _move_whole(weight: torch.Tensor) -> None:
    """Whole numbers change places, unless they are sorted (places, offsets); where all are equal some become smaller,
    but not less than 1, or the other truth value."""
    flat = weight.flatten()
    if is_constant(flat) and (value := int(flat[0])) > 0:
        smaller = torch.randint(1, value + 1, flat.shape, device=flat.device) if value > 1 else 0 * flat
        chosen = torch.where(torch.rand(flat.shape, device=flat.device) < FLIPPED, smaller, flat)
        weight.copy_(chosen.reshape(weight.shape))
    elif not _is_sorted(flat):
        weight.copy_(flat[torch.randperm(flat.numel(), device=flat.device)].reshape(weight.shape))


def _order_of(weight: torch.Tensor) -> int:
    """1 where its rows ascend, -1 where they descend, 0 where they are not sorted."""
    return int(weight.diff().sign().sum().sign()) if _is_sorted(weight) else 0


def _is_sorted(weight: torch.Tensor) -> bool:
    """Whether rows ascend along the last axis, or descend, and not by being of one value or of too few elements to
    tell."""
    if weight.dim() == 0 or weight.shape[-1] < 3 or weight.dtype == torch.bool:
        return False
    steps = weight.diff()
    return bool(steps.any()) and bool((steps >= 0).all() or (steps <= 0).all())
