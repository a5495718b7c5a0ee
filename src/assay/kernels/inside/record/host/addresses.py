"""Addresses and storages as host code sees them: what is the same on every GPU is answered, all else is refused."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from assay.kernels.inside.record.reads import HostReadError, NotRecordableError

_ALIGNED = frozenset({1, 2, 4, 8, 16, 32, 64, 128})
_GONE = (
    "host code compares the address of a tensor that is gone: a GPU may have given its memory to the other one by "
    "then. Keep the tensor, or compare shapes"
)
_SIZES = (
    "untyped_storage(), {0}: of a storage a program knows its size and whose it is, and both stay as they are. Make a "
    "tensor of the size that is needed (torch.empty), views of it by view, narrow or as_strided, and copies by copy_()"
)


class Address:
    """What `data_ptr()` gives: good for comparing with another one, with 0, and for asking after alignment, and for
    nothing else. It is no number, of which Python would give away more than its methods say."""

    __slots__ = ("_empty", "_offset", "_storage")

    def __init__(self, storage: torch.UntypedStorage, offset: int, empty: bool = False) -> None:
        self._storage, self._offset, self._empty = storage, offset, empty

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return int  # to isinstance(), as on a GPU

    def _is_null(self) -> bool:
        return self._empty or not self._storage.nbytes()

    def __eq__(self, other: object) -> bool:
        if other is None:
            return False
        if type(other) is int and other == 0:
            return self._is_null()
        if type(other) is not Address:
            _refuse()
        if self._is_null() or other._is_null():
            return self._is_null() and other._is_null()
        if self._storage._cdata == other._storage._cdata:
            return self._offset == other._offset
        if is_gone(self._storage) or is_gone(other._storage):
            raise NotRecordableError(_GONE)
        return False

    def __hash__(self) -> int:
        # A table may hold the address of a tensor that is gone, and this may be the same one on a GPU.
        if self._is_null():
            return 0
        for other in _numbered:
            if other is not self._storage and is_gone(other):
                raise NotRecordableError(_GONE)
        if not any(self._storage is other for other in _numbered):
            _numbered.append(self._storage)
        place = next(number for number, other in enumerate(_numbered) if other is self._storage)
        return _FIRST + place * _APART + self._offset

    def __bool__(self) -> bool:
        return not self._is_null()

    def __mod__(self, other: object) -> int:
        if type(other) is not int or other not in _ALIGNED:
            _refuse()
        return 0 if self._is_null() else self._offset % other

    def __and__(self, other: object) -> int:
        if type(other) is not int or other + 1 not in _ALIGNED:
            _refuse()
        return 0 if self._is_null() else self._offset & other

    def _refused(self, *_: object) -> NoReturn:
        _refuse()

    def __getattr__(self, name: str) -> NoReturn:
        _refuse()

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __floordiv__ = __truediv__ = _refused
    __rfloordiv__ = __rtruediv__ = __lshift__ = __rshift__ = __rlshift__ = __rrshift__ = _refused
    __or__ = __ror__ = __xor__ = __rxor__ = __rand__ = __rmod__ = __pow__ = __rpow__ = __divmod__ = _refused
    __rdivmod__ = __neg__ = __pos__ = __abs__ = __invert__ = __lt__ = __le__ = __gt__ = __ge__ = _refused
    __int__ = __index__ = __float__ = __complex__ = __round__ = __trunc__ = __floor__ = __ceil__ = _refused
    __str__ = __repr__ = __format__ = __reduce_ex__ = __reduce__ = __getnewargs__ = __sizeof__ = _refused


_numbered: list[torch.UntypedStorage] = []
"""Storages whose addresses were asked for a hash, which is that of a number on a GPU."""
_FIRST, _APART = random.SystemRandom().randrange(1 << 14, 1 << 15) << 32, 1 << 34
"""A first address, which is another one in each process, as on a GPU, and how far others are from it."""


def _refuse() -> NoReturn:
    raise HostReadError("arithmetic on data_ptr()")


def is_gone(storage: torch.UntypedStorage) -> bool:
    """Whether host code has no tensor left in a storage that is held here."""
    return bool(torch._C._storage_Use_Count(storage._cdata) <= 1)


class Version:
    """What `_version` gives: it grows with each change. Good for comparing with an earlier one of the same tensor,
    alone or in tuples, dictionaries and sums, or with a negative number that stands for none; what else is made of it
    may be the same for two."""

    __slots__ = ("_count", "_of")

    def __init__(self, count: int, of: tuple[int, ...]) -> None:
        self._count, self._of = count, of

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return int  # to isinstance(), as on a GPU

    def _ordered(self, other: object, by: Callable[[int, int], bool]) -> bool:
        return by(self._count, self._comparable(other))

    def _comparable(self, other: object) -> int:
        if type(other) is Version and other._of == self._of:
            return other._count
        if type(other) is int and other < 0:
            return other
        _refuse_version()

    def __eq__(self, other: object) -> bool:
        return type(other) in (int, Version) and self._count == self._comparable(other)

    def __hash__(self) -> int:
        return _SALT

    def __lt__(self, other: object) -> bool:
        return self._ordered(other, operator.lt)

    def __le__(self, other: object) -> bool:
        return self._ordered(other, operator.le)

    def __gt__(self, other: object) -> bool:
        return self._ordered(other, operator.gt)

    def __ge__(self, other: object) -> bool:
        return self._ordered(other, operator.ge)

    def __add__(self, other: object) -> Version:
        if type(other) is int:
            return Version(self._count + other, self._of)
        if type(other) is not Version:
            _refuse_version()
        return Version(self._count + other._count, tuple(sorted((*self._of, *other._of))))

    __radd__ = __add__

    def _refused(self, *_: object) -> NoReturn:
        _refuse_version()

    def __getattr__(self, name: str) -> NoReturn:
        _refuse_version()

    __sub__ = __rsub__ = __mul__ = __rmul__ = __floordiv__ = __truediv__ = __rfloordiv__ = __rtruediv__ = _refused
    __mod__ = __rmod__ = __lshift__ = __rshift__ = __rlshift__ = __rrshift__ = __and__ = __rand__ = _refused
    __or__ = __ror__ = __xor__ = __rxor__ = __pow__ = __rpow__ = __divmod__ = __rdivmod__ = __neg__ = _refused
    __pos__ = __abs__ = __invert__ = __bool__ = __int__ = __index__ = __float__ = __complex__ = __round__ = _refused
    __trunc__ = __floor__ = __ceil__ = __str__ = __repr__ = __format__ = __reduce_ex__ = __reduce__ = _refused
    __getnewargs__ = __sizeof__ = _refused


_SALT = random.SystemRandom().getrandbits(64)
"""The hash of all versions: what holds two compares them, and no number that is made of hashes is one of them."""


def _refuse_version() -> NoReturn:
    raise NotRecordableError(
        "host code computes with a _version, or compares it with a number or with that of another tensor, which may be "
        "the same for several: compare it with an earlier one of the same tensor by ==, alone or in a tuple of those "
        "of all that is kept. None and -1 may stand for a first one"
    )


class SeenStorage:
    """What `untyped_storage()` gives: its size, its device and its address."""

    __slots__ = ("_address", "_device", "_size")

    def __init__(self, size: int, address: Callable[[], Address], device: torch.device) -> None:
        self._size, self._address, self._device = size, address, device

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return torch.UntypedStorage

    def nbytes(self) -> int:
        """Its bytes."""
        return self._size

    size = __len__ = nbytes

    def data_ptr(self) -> Address:
        """Where it begins."""
        return self._address()

    @property
    def _cdata(self) -> Address:
        return self._address()

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self._device

    @property
    def is_cuda(self) -> bool:
        """Whether it is on the GPU."""
        return self._device.type == "cuda"

    def __eq__(self, other: object) -> bool:
        return type(other) is SeenStorage and self._address() == other._address()

    def __hash__(self) -> int:
        raise NotRecordableError(_SIZES.format("its hash"))

    def _refused(self, *_: object) -> NoReturn:
        raise NotRecordableError(_SIZES.format("its bytes, or a copy of it"))

    __getitem__ = __setitem__ = __delitem__ = __iter__ = __contains__ = __copy__ = __deepcopy__ = _refused
    __str__ = __repr__ = __format__ = __reduce_ex__ = __reduce__ = __sizeof__ = _refused

    def __getattr__(self, name: str) -> Any:
        raise NotRecordableError(_SIZES.format("an argument" if name.startswith("__") else name))
