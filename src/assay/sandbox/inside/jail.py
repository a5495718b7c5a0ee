"""The walls around one child, put up by itself before the candidate is run, in an order that never lowers one again.

On entry the process is the first of its own user, process, mount and ipc namespaces, inside the worker's bubblewrap.
On return it sees an empty /proc (its own processes, read-only, where it drives devices) and a private small scratch
folder, holds only the descriptors of its job, cannot exceed its limits, has no capability and can never gain one, and
makes only the system calls of its profile. Any step that fails raises, and the candidate is not run.
"""

from __future__ import annotations

import fcntl
import os
import resource
from dataclasses import dataclass

from assay.sandbox.inside import linux

JOB_FD, INPUT_FD, OUTPUT_FD, UP_FD, DOWN_FD = 3, 4, 5, 6, 7
FIRST_FREE_FD = 8
SPARE_FD = 64
"""Descriptors from here on are never among the fixed numbers."""

NOBODY = 65534
NAMESPACES = linux.NEWUSER | linux.NEWPID | linux.NEWNS | linux.NEWIPC


@dataclass(frozen=True, slots=True)
class Descriptors:
    """What a child keeps, under whatever numbers the worker has them."""

    job: int
    inputs: int
    outputs: int
    stderr: int
    up: int
    down: int


@dataclass(frozen=True, slots=True)
class Quota:
    """The limits of one child, in the kernel's units."""

    cpu_s: int
    memory: int
    """Bytes of address space, what is shared with the worker included."""
    tmp_bytes: int
    processes: int
    open_files: int
    file_bytes: int | None = None
    """Longest file that can be written, also one that was handed over; None for `tmp_bytes`."""
    sparse: bool = False
    """Bound private writable memory in place of address space, of which CUDA reserves terabytes that it never uses."""


def become_first_of_namespaces() -> None:
    """Map the user nobody to itself: no other user exists here."""
    linux.set_dumpable(True)  # /proc/self belongs to root while a process is not dumpable
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{NOBODY} {NOBODY} 1"),
        ("gid_map", f"{NOBODY} {NOBODY} 1"),
        ("oom_score_adj", "1000"),
    ):
        _write(f"/proc/self/{name}", text)
    linux.set_dumpable(False)


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    except OSError as error:
        raise OSError(error.errno, f"writing {text!r} to {path}: {error.strerror}") from error
    finally:
        os.close(descriptor)


def cover_folders(scratch: str, tmp_bytes: int, devices: bool) -> None:
    """A private scratch folder; nothing in /proc, or for `devices`, whose drivers read there, its own processes."""
    hardened = linux.MS_NOSUID | linux.MS_NODEV
    files = max(64, tmp_bytes // 4096)
    linux.mount_tmpfs(scratch, hardened, f"size={tmp_bytes},nr_inodes={files},mode=0700")
    os.chdir(scratch)
    if devices:
        _show_own_processes(hardened | linux.MS_NOEXEC)
        return
    linux.mount_tmpfs("/proc", hardened | linux.MS_NOEXEC | linux.MS_RDONLY, "size=4096,nr_inodes=1,mode=0555")


def _show_own_processes(flags: int) -> None:
    """A /proc of this process namespace, in which nothing can be written but the names of this process's threads.
    CUDA names those that it starts, finds them by the numbers that they have here, and gives up where it cannot."""
    linux.mount_proc("/proc", flags)
    linux.keep_writable(f"/proc/{os.getpid()}/task")
    linux.make_read_only("/proc", flags)


def keep_only(descriptors: Descriptors) -> None:
    """Move the descriptors of the job to their fixed numbers and close everything else."""
    null = os.open("/dev/null", os.O_RDWR)
    wanted = (null, null, descriptors.stderr, descriptors.job, descriptors.inputs, descriptors.outputs)
    sources = [fcntl.fcntl(source, fcntl.F_DUPFD, SPARE_FD) for source in (*wanted, descriptors.up, descriptors.down)]
    for target, source in enumerate(sources):
        os.dup2(source, target, inheritable=target <= 2)
    linux.close_from(FIRST_FREE_FD)


def limit(quota: Quota) -> None:
    """Hard limits of this process and its children."""
    for what, value in (
        (resource.RLIMIT_DATA if quota.sparse else resource.RLIMIT_AS, quota.memory),
        (resource.RLIMIT_FSIZE, quota.tmp_bytes if quota.file_bytes is None else quota.file_bytes),
        (resource.RLIMIT_NOFILE, quota.open_files),
        (resource.RLIMIT_NPROC, quota.processes),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_SIGPENDING, 1024),
        (resource.RLIMIT_STACK, 8 << 20),
    ):
        lower(what, value, value)
    lower(resource.RLIMIT_CPU, quota.cpu_s, quota.cpu_s + 1)


def lower(what: int, soft: int, hard: int) -> None:
    """Set a limit, or keep the present hard limit where that is lower already."""
    _, present = resource.getrlimit(what)
    if present != resource.RLIM_INFINITY:
        soft, hard = min(soft, present), min(hard, present)
    resource.setrlimit(what, (soft, hard))


def enter(
    descriptors: Descriptors, quota: Quota, scratch: str, program: int, executables: list[str], devices: bool
) -> None:
    """Put up every wall. `program` is the address of the seccomp filter; `executables` bounds what may be executed;
    `devices` leaves what drivers need to see."""
    # A process group is not bounded by a process namespace: without one of its own, kill(0) would reach the worker.
    os.setsid()
    linux.die_with_parent()
    become_first_of_namespaces()
    cover_folders(scratch, quota.tmp_bytes, devices)
    keep_only(descriptors)
    limit(quota)
    os.umask(0o077)
    linux.drop_capabilities()
    linux.no_new_privileges()
    if executables:
        linux.allow_execution_only_of(executables)
    linux.filter_syscalls(program)


def enter_unsafe(descriptors: Descriptors, quota: Quota, scratch: str) -> None:
    """The little that needs no feature of the machine: own session, limits, closed descriptors, a scratch folder."""
    os.setsid()
    linux.die_with_parent()
    os.chdir(scratch)
    keep_only(descriptors)
    limit(quota)
    os.umask(0o077)
    linux.no_new_privileges()
