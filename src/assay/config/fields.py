"""What a config class says about a field beside its type: bounds, when it is read, whether a resumed run may change it.

    learning_rate: Annotated[float, AtLeast(0)] = 1e-4
    max_turns: Annotated[int, AtLeast(1), UsedWhen("mode", "multi_turn")] = 4
    wandb_name: Annotated[str | None, UsedWhen("wandb_project", NOT_NULL), MAY_CHANGE] = None
    reward: Annotated[str, Code(REWARD)] = "judge"

`assay.config.checks` checks a node against its fields.
"""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

from assay.plugins import Kind


@runtime_checkable
class Condition(Protocol):
    """A test of a value, with its words and a value that passes it."""

    @property
    def words(self) -> str:
        """What a value must be: `at least 1`."""
        ...

    def holds(self, value: object) -> bool:
        """Whether a value passes."""
        ...


_RELATIONS: Mapping[str, Callable[[Any, float], bool]] = {
    "at least": operator.ge,
    "at most": operator.le,
    "above": operator.gt,
    "below": operator.lt,
}


@dataclass(frozen=True)
class Bound:
    """A condition on a number; null is in range."""

    bound: float
    relation: ClassVar[str]

    @property
    def words(self) -> str:
        """See `Condition`."""
        return f"{self.relation} {self.bound}"

    def holds(self, value: object) -> bool:
        """See `Condition`."""
        return value is None or _RELATIONS[self.relation](value, self.bound)


class AtLeast(Bound):
    """A number not below a bound."""

    relation = "at least"


class AtMost(Bound):
    """A number not above a bound."""

    relation = "at most"


class Above(Bound):
    """A number above a bound."""

    relation = "above"


class Below(Bound):
    """A number below a bound."""

    relation = "below"


@dataclass(frozen=True, slots=True)
class _NotNull:
    words: str = "set"

    def holds(self, value: object) -> bool:
        return value is not None


@dataclass(frozen=True, slots=True)
class Not:
    """Any value but one."""

    value: object

    @property
    def words(self) -> str:
        """See `Condition`."""
        plain = self.value is None or isinstance(self.value, bool)
        return f"not {json.dumps(self.value) if plain else self.value}"

    def holds(self, value: object) -> bool:
        """See `Condition`."""
        return value != self.value


NOT_NULL = _NotNull()
"""Any value but null."""


class UsedWhen:
    """A field is read only when another setting has one of some values, or meets a condition; or when a `fact` holds.

    The other setting (or the fact) is looked up by name in the field's own class, then in those that enclose it; it may
    lie below there (`grpo.kl_placement`). A field that differs from its default while nothing reads it is refused.
    """

    def __init__(self, name: str, *values: object) -> None:
        self.name = name
        self.values = values or (True,)
        self._tests = [v.holds if isinstance(v, Condition) else functools.partial(same, v) for v in self.values]

    def holds(self, value: object) -> bool:
        """Whether the field is read when the other setting is `value`."""
        return any(test(value) for test in self._tests)


def same(choice: object, value: object) -> bool:
    """Whether a value is one of those that were written down: True is not 1, and 1.0 is not 1."""
    return choice == value and isinstance(value, type(choice)) and isinstance(value, bool) == isinstance(choice, bool)


class Fact(property):
    """What several settings of a config class amount to, as a property of the class; made by `fact`."""

    words = ""
    """When it holds: `rollouts have several turns`."""
    of: tuple[str, ...] = ()
    """The settings that it follows from."""
    cure = ""
    """What to set so that it holds."""
    why: Callable[[Any], str] | None = None
    """Names the one of these settings because of which it does not hold; None where each may be the reason."""


def fact(
    words: str, *of: str, cure: str, why: Callable[[Any], str] | None = None
) -> Callable[[Callable[[Any], bool]], Fact]:
    """A property of a config class that `UsedWhen` can name; see `Fact`."""

    def made(function: Callable[[Any], bool]) -> Fact:
        found = Fact(function)
        found.words, found.of, found.cure, found.why = words, of, cure, why
        return found

    return made


@dataclass(frozen=True, slots=True)
class _MayChange:
    rounds: bool = False


MAY_CHANGE = _MayChange()
"""A resumed run may change the field (and all below it): it does not decide what the run computes."""
MAY_CHANGE_ROUNDING = _MayChange(rounds=True)
"""The same, but the order of sums depends on it, so that figures may differ in their last digits; a resume says so."""


class _Data:
    pass


DATA = _Data()
"""The field may name a file or a folder of files whose content decides what the run computes: its record keeps their
hashes beside those of code, so that a change is said when the run goes on."""


@dataclass(frozen=True, slots=True)
class Code:
    """The field names code: text that `assay.plugins.find` resolves, or a config class of that kind."""

    kind: Kind
    default: str = ""
    """Short name of the class that a field holding a config class has unless another is chosen."""


@dataclass(frozen=True, slots=True)
class Like:
    """The field's class is that of another field unless it is chosen."""

    name: str
    by: str = ""
    """A class method of that class which names another one to take."""
