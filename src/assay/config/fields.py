"""What a config class says about a field beside its type: bounds, when it is read, whether a resumed run may change it.

    learning_rate: Annotated[float, AtLeast(0)] = 1e-4
    max_turns: Annotated[int, AtLeast(1), UsedWhen("mode", "multi_turn")] = 4
    wandb_name: Annotated[str | None, UsedWhen("wandb_project", NOT_NULL), MAY_CHANGE] = None
    reward: Annotated[str, Code(REWARD)] = "judge"

`assay.config.checks` holds a node to what its fields say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

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


@dataclass(frozen=True, slots=True)
class AtLeast:
    """A number not below a bound."""

    bound: float

    @property
    def words(self) -> str:
        """See `Condition`."""
        return f"at least {self.bound}"

    def holds(self, value: object) -> bool:
        """See `Condition`; null is in range."""
        return value is None or value >= self.bound  # type: ignore[operator]


@dataclass(frozen=True, slots=True)
class AtMost:
    """A number not above a bound."""

    bound: float

    @property
    def words(self) -> str:
        """See `Condition`."""
        return f"at most {self.bound}"

    def holds(self, value: object) -> bool:
        """See `Condition`; null is in range."""
        return value is None or value <= self.bound  # type: ignore[operator]


@dataclass(frozen=True, slots=True)
class Above:
    """A number above a bound."""

    bound: float

    @property
    def words(self) -> str:
        """See `Condition`."""
        return f"above {self.bound}"

    def holds(self, value: object) -> bool:
        """See `Condition`; null is in range."""
        return value is None or value > self.bound  # type: ignore[operator]


@dataclass(frozen=True, slots=True)
class Below:
    """A number below a bound."""

    bound: float

    @property
    def words(self) -> str:
        """See `Condition`."""
        return f"below {self.bound}"

    def holds(self, value: object) -> bool:
        """See `Condition`; null is in range."""
        return value is None or value < self.bound  # type: ignore[operator]


Bound = AtLeast | AtMost | Above | Below


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
        return f"not {self.value}"

    def holds(self, value: object) -> bool:
        """See `Condition`."""
        return value != self.value


NOT_NULL = _NotNull()
"""Any value but null."""


class UsedWhen:
    """A field is read only when another setting has one of some values, or meets a condition.

    The other setting is looked up by name in the field's own class, then in those that enclose it. A field that differs
    from its default while nothing reads it is refused.
    """

    def __init__(self, name: str, *values: object) -> None:
        self.name = name
        self.values = values

    def holds(self, value: object) -> bool:
        """Whether the field is read when the other setting is `value`."""
        return any(v.holds(value) if isinstance(v, Condition) else v == value for v in self.values)


@dataclass(frozen=True, slots=True)
class _MayChange:
    pass


MAY_CHANGE = _MayChange()
"""A resumed run may change the field (and all below it): it does not decide what the run computes."""


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
