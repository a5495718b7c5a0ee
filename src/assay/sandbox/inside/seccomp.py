"""The allowlist of system calls as a classic BPF program, assembled by hand: no library to install, nothing to load.

A call is let through if the profile names it, and for a few calls only with harmless arguments: `clone` for threads (or
plain processes, for compilers) but never namespaces, `prctl` for thread names, `ioctl` for terminal and descriptor
queries and, where devices are driven, requests to an NVIDIA driver, `socket` for those alone and of the local kind,
`prlimit64` on oneself, `fcntl` for descriptors but not for locks, which would hold up others on this machine. Anything
else fails with EPERM, or with ENOSYS where its number is so new that the C library expects that answer and falls back.
A foreign architecture's calls (32-bit, x32) kill the process.
"""

from __future__ import annotations

import ctypes
import errno
import struct
from collections.abc import Iterable

from assay.sandbox.inside.syscalls import NUMBERS, allowed

AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
X32_BIT = 0x40000000
NEWEST_OLD = 424
"""From this number on, calls are numbered alike on all architectures and are younger than Linux 5.1."""

THREAD = 0x00010000
NAMESPACES = 0x7E020080
"""Every CLONE_NEW* flag."""
PRCTL_HARMLESS = (3, 15, 16, 21, 23, 27, 39, 0x53564D41)
"""GET_DUMPABLE, SET_NAME, GET_NAME, GET_SECCOMP, CAPBSET_READ, GET_SECUREBITS, GET_NO_NEW_PRIVS, SET_VMA (names)."""
IOCTL_HARMLESS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX."""

FCNTL_HARMLESS = (0, 1, 2, 3, 4, 5, 36, 1030, 1032, 1034)
"""DUPFD, GETFD, SETFD, GETFL, SETFL, GETLK, OFD_GETLK, DUPFD_CLOEXEC, GETPIPE_SZ, GET_SEALS."""

NVIDIA_TYPE = 0x46
"""`F`, the type byte of requests to /dev/nvidiactl and /dev/nvidia0."""
UVM_PLAIN = 0xFF
"""Requests to /dev/nvidia-uvm are small plain numbers (no file of a job knows others that small), but for these two:"""
UVM_START_STOP = (0x30000001, 0x30000002)
AF_UNIX = 1

_LOAD, _JUMP_EQ, _JUMP_GE, _JUMP_GT, _JUMP_SET, _AND, _RETURN = 0x20, 0x15, 0x35, 0x25, 0x45, 0x54, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER, _ARCH, _ARGS = 0, 4, 16

Instruction = tuple[int, int, int, int]
"""(code, jump if true, jump if false, operand), as in `struct sock_filter`."""


def _fail(code: int) -> Instruction:
    return (_RETURN, 0, 0, _ERRNO | code)


_PASS: Instruction = (_RETURN, 0, 0, _ALLOW)


def _ranges(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """The numbers as inclusive runs, in order."""
    runs: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs


def _argument(index: int) -> int:
    """Offset of the low word of an argument; both architectures are little-endian."""
    return _ARGS + 8 * index


def _when(number: int, block: list[Instruction]) -> list[Instruction]:
    """`block`, which must return, for calls of this number alone."""
    return [(_JUMP_EQ, 0, len(block), number), *block]


def _one_of(index: int, values: Iterable[int], otherwise: int) -> list[Instruction]:
    """Let through if the argument is one of `values`, its high word being zero; fail with `otherwise` if not."""
    values = list(values)
    block: list[Instruction] = [
        (_LOAD, 0, 0, _argument(index) + 4),
        (_JUMP_EQ, 1, 0, 0),
        _fail(otherwise),
        (_LOAD, 0, 0, _argument(index)),
    ]
    block += [(_JUMP_EQ, len(values) - place, 0, value) for place, value in enumerate(values)]
    return [*block, _fail(otherwise), _PASS]


def _clone(compilers: bool) -> list[Instruction]:
    """Threads, and for compilers processes; never a namespace."""
    block: list[Instruction] = [(_LOAD, 0, 0, _argument(0)), (_JUMP_SET, 0, 1, NAMESPACES), _fail(errno.EPERM)]
    return [*block, *([] if compilers else [(_JUMP_SET, 1, 0, THREAD), _fail(errno.EPERM)]), _PASS]


def _fcntl(locks: bool) -> list[Instruction]:
    """What concerns descriptors alone, and locks where they may be had. The kernel reads the low word of a command."""
    if locks:
        return [_PASS]
    count = len(FCNTL_HARMLESS)
    block: list[Instruction] = [(_LOAD, 0, 0, _argument(1))]
    block += [(_JUMP_EQ, count - place, 0, value) for place, value in enumerate(FCNTL_HARMLESS)]
    return [*block, _fail(errno.EPERM), _PASS]


def _ioctl(devices: bool) -> list[Instruction]:
    """Harmless queries, and for devices what NVIDIA's drivers are asked."""
    if not devices:
        return _one_of(1, IOCTL_HARMLESS, errno.ENOTTY)
    return [
        (_LOAD, 0, 0, _argument(1) + 4),
        (_JUMP_EQ, 1, 0, 0),
        _fail(errno.ENOTTY),
        (_LOAD, 0, 0, _argument(1)),
        (_JUMP_GT, 1, 0, UVM_PLAIN),
        _PASS,
        (_AND, 0, 0, 0xFF00),
        (_JUMP_EQ, 0, 1, NVIDIA_TYPE << 8),
        _PASS,
        *_one_of(1, (*IOCTL_HARMLESS, *UVM_START_STOP), errno.ENOTTY),
    ]


def assemble(architecture: str, compilers: bool, devices: bool = False) -> list[Instruction]:
    """The program of a profile. `compilers` also lets processes be made and programs be executed, `devices` lets CUDA
    do what it needs."""
    numbers = NUMBERS[architecture]
    program: list[Instruction] = [
        (_LOAD, 0, 0, _ARCH),
        (_JUMP_EQ, 1, 0, AUDIT[architecture]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
    ]
    if architecture == "x86_64":
        program += [(_JUMP_GE, 0, 1, X32_BIT), (_RETURN, 0, 0, _KILL)]
    for low, high in _ranges(allowed(architecture, compilers, devices)):
        if low == high:
            program += [(_JUMP_EQ, 0, 1, low), _PASS]
        else:
            program += [(_JUMP_GE, 0, 2, low), (_JUMP_GT, 1, 0, high), _PASS]
    program += _when(numbers["clone"], _clone(compilers))
    program += _when(numbers["prctl"], _one_of(0, PRCTL_HARMLESS, errno.EPERM))
    program += _when(numbers["fcntl"], _fcntl(compilers and devices))
    program += _when(numbers["ioctl"], _ioctl(devices))
    program += _when(numbers["socket"], _one_of(0, (AF_UNIX,) if devices else (), errno.EPERM))
    program += _when(numbers["prlimit64"], _one_of(0, (0,), errno.EPERM))
    return [*program, (_JUMP_GE, 0, 1, NEWEST_OLD), _fail(errno.ENOSYS), _fail(errno.EPERM)]


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_void_p))


class Filter:
    """A program in memory, made once in the worker and put in force in each child."""

    def __init__(self, architecture: str, compilers: bool, devices: bool = False) -> None:
        program = assemble(architecture, compilers, devices)
        self._code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in program))
        self._program = _Program(len(program), ctypes.addressof(self._code))

    @property
    def address(self) -> int:
        """Where `prctl(PR_SET_SECCOMP)` finds the program."""
        return ctypes.addressof(self._program)
