"""The few kernel interfaces that Python has no function for: clone3, mount, prctl, capset, landlock, sealing.

Every function raises OSError naming the call that failed. ctypes keeps the interpreter's lock during a call, which the
fork needs; none of these blocks.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import os
import signal
import struct
from collections.abc import Callable
from functools import partial

from assay.sandbox.inside.syscalls import number

NEWNS, NEWIPC, NEWUSER, NEWPID, NEWNET = 0x00020000, 0x08000000, 0x10000000, 0x20000000, 0x40000000
_PIDFD, _CHILD_SETTID, _CHILD_CLEARTID = 0x00001000, 0x01000000, 0x00200000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
_MS_REMOUNT, _MS_BIND = 32, 4096
_MNT_DETACH = 2

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SET_CHILD_SUBREAPER = 1, 4, 22, 36
_PR_SET_NO_NEW_PRIVS, _PR_GET_TID_ADDRESS = 38, 40
_SECCOMP_MODE_FILTER = 2
_CAPABILITY_VERSION_3 = 0x20080522

SEAL_SEAL, SEAL_SHRINK, SEAL_GROW, SEAL_WRITE, SEAL_FUTURE_WRITE = 0x1, 0x2, 0x4, 0x8, 0x10

_MADV_COLLAPSE = 25
_HUGE_PAGE = 1 << 21

_LANDLOCK_EXECUTE, _LANDLOCK_PATH_BENEATH = 1, 1

_libc = ctypes.PyDLL(None, use_errno=True)


def _checked(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def _syscall(name: str, *arguments: object) -> int:
    return _checked(_libc.syscall(ctypes.c_long(number(name)), *arguments), name)


def _prctl(option: int, *arguments: int, what: str) -> int:
    padded = [*arguments, 0, 0, 0, 0][:4]
    return _checked(_libc.prctl(option, *(ctypes.c_ulong(value) for value in padded)), what)


class _CloneArgs(ctypes.Structure):
    """`struct clone_args`, up to what Linux 5.5 knows."""

    _fields_ = tuple(
        (name, ctypes.c_uint64)
        for name in ("flags", "pidfd", "child_tid", "parent_tid", "exit_signal", "stack", "stack_size", "tls")
    )


def _thread_id_address() -> int:
    """Where the C library keeps this thread's id, so that a fork can renew it as the C library's own would; or 0."""
    address = ctypes.c_void_p()
    if _libc.prctl(_PR_GET_TID_ADDRESS, ctypes.byref(address), 0, 0, 0) != 0:
        return 0
    return address.value or 0


@functools.cache
def _cloning() -> tuple[_CloneArgs, ctypes.c_int, Callable[[], int]]:
    """The arguments of a fork, where it leaves its pidfd, and the call itself."""
    pidfd, tid = ctypes.c_int(-1), _thread_id_address()
    arguments = _CloneArgs(0, ctypes.addressof(pidfd), tid, 0, signal.SIGCHLD)
    size = ctypes.c_size_t(ctypes.sizeof(arguments))
    return arguments, pidfd, partial(_libc.syscall, ctypes.c_long(number("clone3")), ctypes.byref(arguments), size)


def prepare_forks() -> None:
    """Find the C functions that a fork and its child call. What is first called in a child, each child would look up
    again for itself."""
    _cloning()
    for name in ("mount", "prctl"):
        getattr(_libc, name)


def fork(namespaces: int = 0) -> tuple[int, int]:
    """A fork into new namespaces: (0, -1) in the child, (pid, pidfd) in the parent. Needs a single thread.

    Unlike `os.fork` it runs nothing that was registered to run at forks. That renews the locks of a second thread, and
    the state of `random`, which a child that draws has to seed.
    """
    arguments, pidfd, clone = _cloning()
    arguments.flags = namespaces | _PIDFD | ((_CHILD_SETTID | _CHILD_CLEARTID) if arguments.child_tid else 0)
    pid = clone()
    if pid == 0:
        return 0, -1
    if pid < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"clone3: {os.strerror(code)}")
    return pid, pidfd.value


def use_huge_pages() -> int:
    """Move this process's private memory into huge pages where it can be; returns how many bytes lie in them now.

    A fork copies one entry per page, and its end frees them one by one: for a process that has imported torch this
    makes both several times cheaper. Kernels before 6.1 refuse, which costs nothing but that.
    """
    moved = 0
    with open("/proc/self/maps", encoding="ascii", errors="replace") as file:
        lines = file.read().splitlines()
    for line in lines:
        span, mode, _, _, _, *name = line.split(maxsplit=5)
        if mode != "rw-p" or (name and name[0] != "[heap]"):
            continue
        first, last = (int(address, 16) for address in span.split("-"))
        first, last = -(-first // _HUGE_PAGE) * _HUGE_PAGE, last // _HUGE_PAGE * _HUGE_PAGE
        for start in range(first, last, _HUGE_PAGE):
            if _libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(_HUGE_PAGE), _MADV_COLLAPSE) == 0:
                moved += _HUGE_PAGE
    return moved


def mount_tmpfs(target: str, flags: int, options: str) -> None:
    """A fresh tmpfs over `target`."""
    result = _libc.mount(b"tmpfs", os.fsencode(target), b"tmpfs", ctypes.c_ulong(flags), options.encode())
    _checked(result, f"mount tmpfs on {target}")


def make_read_only(target: str, flags: int) -> None:
    """Make the mount at `target` read-only, for this mount namespace alone; `flags` are those that it keeps."""
    both = ctypes.c_ulong(flags | MS_RDONLY | _MS_REMOUNT | _MS_BIND)
    _checked(_libc.mount(None, os.fsencode(target), None, both, None), f"remount {target} read-only")


def mount_proc(target: str, flags: int) -> None:
    """The processes of this process namespace over `target`. The kernel allows it only where a whole /proc can be seen
    already, without anything mounted on a part of it."""
    result = _libc.mount(b"proc", os.fsencode(target), b"proc", ctypes.c_ulong(flags), None)
    _checked(result, f"mount proc on {target}")


def keep_writable(target: str) -> None:
    """Make `target` a mount of its own, which does not become read-only with the one that it lies in."""
    both = os.fsencode(target)
    _checked(_libc.mount(both, both, None, ctypes.c_ulong(_MS_BIND), None), f"bind {target}")


def uncover(folder: str) -> None:
    """Unmount what is mounted below `folder`, for this mount namespace alone."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        points = [line.split()[4] for line in file]
    for point in reversed([point for point in points if point.startswith(f"{folder}/")]):
        _checked(_libc.umount2(os.fsencode(point), _MNT_DETACH), f"unmount {point}")


def become(user: int) -> None:
    """Become this user and the group of the same number, for good."""
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, what="prctl(PR_SET_PDEATHSIG)")


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies, so that none is lost sight of."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1, what="prctl(PR_SET_CHILD_SUBREAPER)")


def set_dumpable(dumpable: bool) -> None:
    """Whether processes of the same user may trace this one and own its entries in /proc."""
    _prctl(_PR_SET_DUMPABLE, int(dumpable), what="prctl(PR_SET_DUMPABLE)")


def drop_capabilities() -> None:
    """Give up every capability. Without new privileges the bounding set, which is left, can give none back."""
    header = ctypes.create_string_buffer(struct.pack("=Ii", _CAPABILITY_VERSION_3, 0))
    _syscall("capset", header, ctypes.create_string_buffer(24))


def no_new_privileges() -> None:
    """No later exec can gain anything; also what an unprivileged process needs to install a filter."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1, what="prctl(PR_SET_NO_NEW_PRIVS)")


def filter_syscalls(program: int) -> None:
    """Put the seccomp program at this address in force."""
    _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, program, what="prctl(PR_SET_SECCOMP)")


def close_from(first: int) -> None:
    """Close every descriptor from `first` up."""
    _syscall("close_range", ctypes.c_uint(first), ctypes.c_uint(0xFFFFFFFF), ctypes.c_uint(0))


def sealed_file(name: str, size: int, seals: int) -> int:
    """An anonymous file in memory, of fixed size, with these seals besides."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, size)
        seal(descriptor, seals | SEAL_SHRINK | SEAL_GROW)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def seal(descriptor: int, seals: int) -> None:
    """Add seals to an anonymous file."""
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)


def allow_execution_only_of(paths: list[str]) -> bool:
    """Let this process and its children execute only what lies under `paths`; False without Landlock in the kernel."""
    attributes = ctypes.create_string_buffer(struct.pack("=Q", _LANDLOCK_EXECUTE))
    try:
        rules = _syscall("landlock_create_ruleset", attributes, ctypes.c_size_t(8), ctypes.c_uint(0))
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EOPNOTSUPP):
            return False
        raise
    try:
        for path in paths:
            target = os.open(path, os.O_PATH | os.O_CLOEXEC)
            try:
                rule = ctypes.create_string_buffer(struct.pack("=Qi", _LANDLOCK_EXECUTE, target))
                _syscall(
                    "landlock_add_rule",
                    ctypes.c_int(rules),
                    ctypes.c_int(_LANDLOCK_PATH_BENEATH),
                    rule,
                    ctypes.c_uint(0),
                )
            finally:
                os.close(target)
        _syscall("landlock_restrict_self", ctypes.c_int(rules), ctypes.c_uint(0))
    finally:
        os.close(rules)
    return True


def default_signals() -> None:
    """Default handlers and nothing blocked, for this process and its children; Python wants SIGPIPE ignored."""
    for each in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE}:
        if signal.getsignal(each) is not None:
            signal.signal(each, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def kill_session(leader: int) -> None:
    """Without a process namespace: whatever stayed in the child's process group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
