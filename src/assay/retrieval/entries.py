"""One solved problem of an index."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Literal, get_args

from assay.errors import DataError
from assay.types import Json

Language = Literal["triton", "cuda"]
"""What a kernel is written in."""
LANGUAGES: tuple[Language, ...] = get_args(Language)


@dataclass(frozen=True)
class Entry:
    """A problem with a kernel that solves it."""

    name: str
    """What its data set calls it: `level_1/19_ReLU`, `Softmax`."""
    language: Language
    torch_code: str
    """The problem: a PyTorch module."""
    kernel_code: str
    code_hash: str
    """`code_hash(torch_code)`."""
    source: str
    """The data set or file that it comes from."""
    correct: bool
    """What its data set says of the kernel; true where it says nothing."""
    speedup: float | None
    """Over eager PyTorch, as its data set says; never measured by Assay."""

    def as_json(self) -> Json:
        """Plain data, from which `from_json` makes it again."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Json) -> Entry:
        """The entry that plain data describe.

        Raises:
            DataError: they describe none.
        """
        kinds: dict[str, type | tuple[type, ...]] = {"correct": bool, "speedup": (int, float, type(None))}
        names = [field.name for field in fields(cls)]
        if not isinstance(value, dict) or sorted(value) != sorted(names):
            raise DataError("an entry is an object with " + ", ".join(names))
        for name in names:
            if not isinstance(value[name], kinds.get(name, str)):
                raise DataError(f"the {name} of an entry is a {type(value[name]).__name__}")
        if value["language"] not in LANGUAGES:
            raise DataError(f"the language of an entry is {value['language']!r:.40}")
        return cls(**value)
