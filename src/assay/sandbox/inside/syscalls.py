"""Numbers of the system calls that a job may make, per architecture, and which profile may make which.

A call that is not named here fails in every job. `CHECKED` calls are let through only with certain arguments, which
`assay.sandbox.inside.seccomp` knows.
"""

from __future__ import annotations

import functools
import platform


def _table(text: str) -> dict[str, int]:
    return {name: int(number) for name, number in (entry.split("=") for entry in text.split())}


NUMBERS = {
    "x86_64": _table("""
        read=0 write=1 open=2 close=3 stat=4 fstat=5 lstat=6 poll=7 lseek=8 mmap=9 mprotect=10 munmap=11 brk=12
        rt_sigaction=13 rt_sigprocmask=14 rt_sigreturn=15 ioctl=16 pread64=17 pwrite64=18 readv=19 writev=20 access=21
        pipe=22 select=23 sched_yield=24 mremap=25 msync=26 madvise=28 dup=32 dup2=33 pause=34 nanosleep=35
        getitimer=36 getpid=39 sendfile=40 clone=56 fork=57 vfork=58 execve=59 exit=60 wait4=61 kill=62 uname=63
        fcntl=72 flock=73 fsync=74 fdatasync=75 truncate=76 ftruncate=77 getdents=78 getcwd=79 chdir=80 fchdir=81
        rename=82 mkdir=83 rmdir=84 link=86 unlink=87 symlink=88 readlink=89 chmod=90 fchmod=91 umask=95
        gettimeofday=96 getrlimit=97 getrusage=98 sysinfo=99 times=100 getuid=102 getgid=104 geteuid=107 getegid=108
        setpgid=109 getppid=110 getpgrp=111 setsid=112 getgroups=115 getresuid=118 getresgid=120 getpgid=121 getsid=124
        capget=125 rt_sigpending=127 rt_sigtimedwait=128 rt_sigsuspend=130 sigaltstack=131 utime=132 statfs=137
        fstatfs=138 getpriority=140 sched_getparam=143 sched_getscheduler=145 sched_get_priority_max=146
        sched_get_priority_min=147 prctl=157 arch_prctl=158 gettid=186 getxattr=191 lgetxattr=192 fgetxattr=193
        listxattr=194 llistxattr=195 flistxattr=196 tkill=200 time=201 futex=202 sched_getaffinity=204 getdents64=217
        set_tid_address=218 restart_syscall=219 fadvise64=221 clock_gettime=228 clock_getres=229 clock_nanosleep=230
        exit_group=231 tgkill=234 utimes=235 waitid=247 openat=257 mkdirat=258 newfstatat=262 unlinkat=263 renameat=264
        linkat=265 symlinkat=266 readlinkat=267 fchmodat=268 faccessat=269 pselect6=270 ppoll=271 set_robust_list=273
        get_robust_list=274 utimensat=280 fallocate=285 dup3=292 pipe2=293 preadv=295 pwritev=296 prlimit64=302
        getcpu=309 renameat2=316 getrandom=318 membarrier=324 copy_file_range=326 statx=332 rseq=334 clone3=435
        close_range=436 faccessat2=439 futex_waitv=449 capset=126 landlock_create_ruleset=444 landlock_add_rule=445
        landlock_restrict_self=446 mincore=27 socket=41 accept=43 bind=49 listen=50 getsockname=51 setsockopt=54
        getsockopt=55 sched_setparam=142 sched_setscheduler=144 mlock=149 munlock=150 sched_setaffinity=203
        epoll_wait=232 epoll_ctl=233 mbind=237 set_mempolicy=238 get_mempolicy=239 epoll_pwait=281 eventfd=284
        accept4=288 eventfd2=290 epoll_create1=291 memfd_create=319 mlock2=325"""),
    "aarch64": _table("""
        getxattr=8 lgetxattr=9 fgetxattr=10 listxattr=11 llistxattr=12 flistxattr=13 getcwd=17 dup=23 dup3=24 fcntl=25
        ioctl=29 flock=32 mkdirat=34 unlinkat=35 symlinkat=36 linkat=37 renameat=38 statfs=43 fstatfs=44 truncate=45
        ftruncate=46 fallocate=47 faccessat=48 chdir=49 fchdir=50 fchmod=52 fchmodat=53 openat=56 close=57 pipe2=59
        getdents64=61 lseek=62 read=63 write=64 readv=65 writev=66 pread64=67 pwrite64=68 preadv=69 pwritev=70
        sendfile=71 pselect6=72 ppoll=73 readlinkat=78 newfstatat=79 fstat=80 fsync=82 fdatasync=83 utimensat=88
        capget=90 exit=93 exit_group=94 waitid=95 set_tid_address=96 futex=98 set_robust_list=99 get_robust_list=100
        nanosleep=101 getitimer=102 clock_gettime=113 clock_getres=114 clock_nanosleep=115 sched_getscheduler=120
        sched_getparam=121 sched_getaffinity=123 sched_yield=124 sched_get_priority_max=125 sched_get_priority_min=126
        restart_syscall=128 kill=129 tkill=130 tgkill=131 sigaltstack=132 rt_sigsuspend=133 rt_sigaction=134
        rt_sigprocmask=135 rt_sigpending=136 rt_sigtimedwait=137 rt_sigreturn=139 getpriority=141 getresuid=148
        getresgid=150 times=153 setpgid=154 getpgid=155 getsid=156 setsid=157 getgroups=158 uname=160 getrlimit=163
        getrusage=165 umask=166 prctl=167 getcpu=168 gettimeofday=169 getpid=172 getppid=173 getuid=174 geteuid=175
        getgid=176 getegid=177 gettid=178 sysinfo=179 brk=214 munmap=215 mremap=216 clone=220 execve=221 mmap=222
        fadvise64=223 mprotect=226 msync=227 madvise=233 wait4=260 prlimit64=261 renameat2=276 getrandom=278
        membarrier=283 copy_file_range=285 statx=291 rseq=293 clone3=435 close_range=436 faccessat2=439 futex_waitv=449
        capset=91 landlock_create_ruleset=444 landlock_add_rule=445 landlock_restrict_self=446
        eventfd2=19 epoll_create1=20 epoll_ctl=21 epoll_pwait=22 sched_setparam=118
        sched_setscheduler=119 sched_setaffinity=122 socket=198 bind=200 listen=201 accept=202 getsockname=204
        setsockopt=208 getsockopt=209 mlock=228 munlock=229 mincore=232 mbind=235 get_mempolicy=236 set_mempolicy=237
        accept4=242 memfd_create=279 mlock2=284"""),
}
"""Architecture -> name -> number, from the kernel's headers."""

FORBIDDEN = frozenset({"capset", "clone3", "landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self"})
"""Made by the sandbox before the filter is in force; no job may make them."""

CHECKED = frozenset({"clone", "fcntl", "ioctl", "prctl", "prlimit64", "socket"})
LOCKS = frozenset({"flock"})
"""A lock on a file in view is one on this machine's file, and holds up whoever shares it. PyTorch's own compiler cannot
do without, so jobs that both compile and drive devices may make it."""
COMPILERS_ONLY = frozenset(
    {"fork", "vfork", "execve", "setsid", "setpgid", "utime", "utimes", "utimensat"} | {"fadvise64"}
)
"""Besides processes and programs, the times of files, and which of them memory holds: both are this machine's, and tell
later jobs what an earlier one has set."""
DEVICES_ONLY = frozenset(
    {"mincore", "accept", "accept4", "bind", "listen", "getsockname", "setsockopt", "getsockopt", "sched_setparam"}
    | {"sched_setscheduler", "sched_setaffinity", "mlock", "munlock", "mlock2", "mbind", "set_mempolicy"}
    | {"get_mempolicy", "eventfd", "eventfd2", "epoll_create1", "epoll_ctl", "epoll_wait", "epoll_pwait"}
    | {"memfd_create"}
)
"""What CUDA calls besides, on its way to a context. A socket can be bound and listened on, never connected."""


@functools.cache
def machine() -> str:
    """The architecture of this process, as `NUMBERS` names it."""
    return {"arm64": "aarch64", "amd64": "x86_64"}.get(platform.machine().lower(), platform.machine())


@functools.cache
def number(name: str) -> int:
    """The number of a system call here."""
    return NUMBERS[machine()][name]


def allowed(architecture: str, compilers: bool, devices: bool = False) -> set[int]:
    """Numbers of the calls that a profile lets through whatever their arguments are."""
    denied = FORBIDDEN | CHECKED
    denied |= (frozenset() if compilers else COMPILERS_ONLY) | (frozenset() if devices else DEVICES_ONLY)
    denied |= frozenset() if compilers and devices else LOCKS
    return {value for name, value in NUMBERS[architecture].items() if name not in denied}
