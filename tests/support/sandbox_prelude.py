"""What every attack starts with: system calls by name. Its text is put before that of each attack."""

from __future__ import annotations

import ctypes
import os
import platform

LIBC = ctypes.CDLL(None, use_errno=True)
ARM = platform.machine() in ("aarch64", "arm64")
NUMBERS = {  # name: (x86_64, aarch64)
    "clone": (56, 220),
    "clone3": (435, 435),
    "ptrace": (101, 117),
    "mount": (165, 40),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "setns": (308, 268),
    "pivot_root": (155, 41),
    "io_uring_setup": (425, 425),
    "add_key": (248, 217),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "perf_event_open": (298, 241),
    "memfd_create": (319, 279),
    "seccomp": (317, 277),
    "capset": (126, 91),
    "personality": (135, 92),
    "process_vm_readv": (310, 270),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "execveat": (322, 281),
    "init_module": (175, 105),
    "kexec_load": (246, 104),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "clock_settime": (227, 112),
    "shmget": (29, 194),
    "mq_open": (240, 180),
    "inotify_init1": (294, 26),
    "fanotify_init": (300, 262),
    "open_by_handle_at": (304, 265),
    "syslog": (103, 116),
    "sched_setaffinity": (203, 122),
    "mlockall": (151, 230),
    "vmsplice": (278, 75),
    "landlock_create_ruleset": (444, 444),
    "open_tree": (428, 428),
    "fsopen": (430, 430),
    "setreuid": (113, 145),
}


def syscall(name: str, *arguments: int | bytes) -> int:
    """The result of a system call; OSError where it fails."""
    words = [a if isinstance(a, bytes) else ctypes.c_long(a) for a in arguments]
    result = LIBC.syscall(ctypes.c_long(NUMBERS[name][ARM]), *words)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
    return int(result)
