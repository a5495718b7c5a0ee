"""What a candidate may try, as the source of candidates: each function is one attack, and returns whether it succeeded.

Attacks run inside a sandbox, so each imports what it uses and takes `told`, the header of its job. A refusal shows as
an OSError (or MemoryError), which the wrapper takes for a failure; any other exception is a
crash, so a broken attack cannot pass for a contained one. `reachable` attacks are also run without walls, where they
must succeed.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from typing import Any

from assay.sandbox import Job, Limits, Round
from support import sandbox_prelude
from support.sandbox_prelude import LIBC, ctypes, syscall

SUCCEEDED, FAILED = b"SUCCEEDED", b"contained"

PRELUDE = inspect.getsource(sandbox_prelude) + "\nimport sys\n"

WRAPPER = f"""
def run(inputs, header):
    try:
        succeeded = {{name}}(header)
    except (OSError, MemoryError) as error:
        print(error)
        succeeded = False
    return [{SUCCEEDED!r} if succeeded else {FAILED!r}]
"""

Attack = Callable[[Any], bool]

DENIED: list[Attack] = []
"""Attacks that must not get what they want."""
REACHABLE: set[str] = set()
"""Names of attacks that succeed where there are no walls."""


def denied(attack: Attack) -> Attack:
    DENIED.append(attack)
    return attack


def reachable(attack: Attack) -> Attack:
    REACHABLE.add(attack.__name__)
    return denied(attack)


def job(attack: Attack, told: Any = None, limits: Limits | None = None) -> Job:
    """The job whose candidate makes this attack."""
    lines = inspect.getsource(attack).splitlines()
    body = "\n".join(line for line in lines if not line.startswith("@"))
    source = f"{PRELUDE}\n{body}\n{WRAPPER.format(name=attack.__name__)}"
    limits = limits or Limits(wall_s=20, cpu_s=10, memory_mb=256, tmp_mb=8, processes=16, open_files=64)
    return Job(source, "assay.sandbox.plain", (Round((b"input",), (len(FAILED),)),), header=told, limits=limits)


# --- network


@reachable
def connect_to_loopback(told):
    import socket

    with socket.create_connection(("127.0.0.1", told["port"]), timeout=5):
        return True


@reachable
def connect_to_abstract_socket(told):
    import socket

    with socket.socket(socket.AF_UNIX) as client:
        client.connect("\0" + told["abstract"])
        return True


@reachable
def make_socket_pair(told):
    import socket

    return bool(socket.socketpair())


@reachable
def open_datagram_socket(told):
    import socket

    return bool(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))


@denied
def open_vsock(told):
    import socket

    return bool(socket.socket(40, socket.SOCK_STREAM))


@reachable
def open_netlink(told):
    import socket

    return bool(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW))


@denied
def pass_descriptors(told):
    import array
    import socket

    done = False
    for number in range(3, 16):
        try:
            end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, number)
        except OSError:
            continue
        end.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [1]))])
        done = True
    return done


# --- files


@reachable
def read_a_secret(told):
    return "hunter2" in open(told["secret"]).read()


@reachable
def read_password_file(told):
    return "root" in open("/etc/passwd").read()


@reachable
def read_a_secret_through_a_link(told):
    os.symlink(told["secret"], "link")
    try:
        return "hunter2" in open("link").read()
    finally:
        os.unlink("link")


@reachable
def read_processes(told):
    return bool(os.listdir("/proc"))


@denied
def read_environment_of_parents(told):
    return b"PATH" in open(f"/proc/{os.getppid()}/environ", "rb").read()


@denied
def inherit_a_variable(told):
    return told["variable"] in os.environ


@reachable
def read_sys(told):
    return bool(os.listdir("/sys/class"))


@reachable
def list_the_project(told):
    return bool(os.listdir(told["project"]))


@denied
def write_to_usr(told):
    return bool(open("/usr/assay-was-here", "w"))


@denied
def write_to_packages(told):
    found = False
    for folder in {os.path.dirname(m.__file__) for m in list(sys.modules.values()) if getattr(m, "__file__", None)}:
        try:
            os.makedirs(os.path.join(folder, "__pycache__"), exist_ok=True)
            name = os.path.join(folder, "__pycache__", "assay_was_here.pyc")
            open(name, "w").close()
            found = True
            os.unlink(name)
        except OSError:
            continue
    return found


@denied
def rewrite_the_harness(told):
    return bool(open(sys.modules["assay.sandbox.plain"].__file__, "a"))


@denied
def remount_by_chmod(told):
    os.chmod("/usr", 0o777)
    return True


@denied
def write_to_the_root_folder(told):
    for folder in ("/", "/tmp/..", "/dev", "/etc"):
        try:
            open(os.path.join(folder, "assay-was-here"), "w").close()
        except OSError:
            continue
        return True
    return False


@denied
def open_devices(told):
    for name in ("mem", "kmsg", "sda", "vda", "fuse", "kvm", "net/tun", "tty", "ptmx", "shm/../mem"):
        try:
            os.open(f"/dev/{name}", os.O_RDWR)
        except OSError:
            continue
        return True
    return False


@denied
def make_a_device(told):
    os.mknod("device", 0o600 | 0o060000, os.makedev(8, 0))
    return True


@denied
def open_by_handle(told):
    return syscall("open_by_handle_at", -100, bytes(64), 0) >= 0


# --- processes


@reachable
def fork(told):
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    return pid > 0


@denied
def clone_a_process(told):
    pid = syscall("clone", 17, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    return pid > 0


@denied
def clone_with_clone3(told):
    pid = syscall("clone3", bytes(32) + (17).to_bytes(8, "little") + bytes(24), 64)
    if pid == 0:
        os._exit(0)
    return pid > 0


@denied
def clone_a_namespace(told):
    return syscall("clone", 0x10000000 | 0x10000 | 0x800 | 0x100, 0, 0, 0, 0) >= 0


@denied
def execute(told):
    os.execv("/bin/true", ["true"])
    return True


@denied
def execute_from_memory(told):
    file = os.open(sys.executable, os.O_RDONLY)
    return syscall("execveat", file, b"", 0, 0, 0x1000) == 0


@reachable
def run_a_program(told):
    import subprocess

    return subprocess.run(["/bin/true"]).returncode == 0


@reachable
def use_a_shell(told):
    return os.system("true") == 0


@reachable
def daemonise(told):
    import time

    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(0.2)
        os._exit(0)
    return True


@denied
def kill_somebody(told):
    import signal

    killed = []
    for pid in (-1, os.getppid() or 2, *range(2, 64)):
        try:
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)
        except OSError:
            continue
    return bool(killed)


@denied
def trace_the_parent(told):
    return syscall("ptrace", 16, os.getppid() or 1, 0, 0) == 0


@denied
def be_traced(told):
    return syscall("ptrace", 0, 0, 0, 0) == 0


@denied
def read_memory_of_others(told):
    return syscall("process_vm_readv", os.getppid() or 1, bytes(16), 1, bytes(16), 1, 0) >= 0


@reachable
def open_a_process(told):
    return syscall("pidfd_open", os.getpid(), 0) >= 0


@denied
def steal_a_descriptor(told):
    return syscall("pidfd_getfd", 3, 0, 0) >= 0


@denied
def compare_processes(told):
    return syscall("kcmp", os.getpid(), os.getpid(), 2, 0, 0) >= 0


# --- kernel interfaces


@denied
def mount_something(told):
    return syscall("mount", b"tmpfs", b".", b"tmpfs", 0, 0) == 0


@denied
def uncover_proc(told):
    return syscall("umount2", b"/proc", 2) == 0


@denied
def mount_the_new_way(told):
    try:
        return syscall("open_tree", -100, b"/", 1) >= 0
    except OSError:
        return syscall("fsopen", b"proc", 0) >= 0


@denied
def change_the_root(told):
    try:
        os.chroot(".")
    except OSError:
        syscall("pivot_root", b".", b".")
    return True


@denied
def make_a_user_namespace(told):
    return syscall("unshare", 0x10000000) == 0


@denied
def enter_a_namespace(told):
    return syscall("setns", 3, 0) == 0


@denied
def start_io_uring(told):
    return syscall("io_uring_setup", 4, bytes(120)) >= 0


@denied
def store_a_key(told):
    return syscall("add_key", b"user", b"name", b"payload", 7, -3) >= 0


@denied
def read_keyrings(told):
    return syscall("keyctl", 0, -3, 1) >= 0


@denied
def load_bpf(told):
    return syscall("bpf", 0, bytes(128), 128) >= 0


@denied
def catch_page_faults(told):
    return syscall("userfaultfd", 1) >= 0


@denied
def count_events(told):
    return syscall("perf_event_open", bytes(128), 0, -1, -1, 0) >= 0


@reachable
def make_an_anonymous_file(told):
    return syscall("memfd_create", b"bomb", 0) >= 0


@denied
def add_a_filter(told):
    return syscall("seccomp", 1, 0, bytes(16)) == 0


@denied
def make_landlock_rules(told):
    return syscall("landlock_create_ruleset", (1).to_bytes(8, "little"), 8, 0) >= 0


@denied
def become_root(told):
    try:
        os.setuid(0)
    except OSError:
        syscall("setreuid", 0, 0)
    return True


@denied
def regain_capabilities(told):
    header = (0x20080522).to_bytes(4, "little") + bytes(4)
    return syscall("capset", header, b"\xff" * 24) == 0


@denied
def hold_capabilities(told):
    header = ctypes.create_string_buffer((0x20080522).to_bytes(4, "little") + bytes(4))
    data = ctypes.create_string_buffer(24)
    LIBC.capget(header, data)
    return any(data.raw)


@denied
def become_dumpable(told):
    return LIBC.prctl(4, 1, 0, 0, 0) == 0


@denied
def outlive_the_worker(told):
    return LIBC.prctl(1, 0, 0, 0, 0) == 0


@reachable
def change_personality(told):
    return syscall("personality", 0x0040000) >= 0


@denied
def administer_the_machine(told):
    attempts = (
        ("init_module", bytes(8), 8, b""),
        ("kexec_load", 0, 0, 0, 0),
        ("reboot", 0xFEE1DEAD, 672274793, 0, 0),
        ("swapon", b"swap", 0),
        ("clock_settime", 0, bytes(16)),
        ("syslog", 3, bytes(64), 64),
        ("fanotify_init", 0, 0),
        ("mlockall", 3),
    )
    for name, *arguments in attempts:
        try:
            syscall(name, *arguments)
        except OSError:
            continue
        return True
    return False


@reachable
def share_memory(told):
    return syscall("shmget", 0, 4096, 0o1600) >= 0


@denied
def queue_messages(told):
    return syscall("mq_open", b"assay", os.O_CREAT | os.O_RDWR, 0o600, 0) >= 0


@reachable
def watch_files(told):
    return syscall("inotify_init1", 0) >= 0


@reachable
def choose_a_core(told):
    return syscall("sched_setaffinity", 0, 8, (1).to_bytes(8, "little")) >= 0


@denied
def type_into_the_terminal(told):
    import fcntl

    fcntl.ioctl(0, 0x5412, b"x")
    return True


@reachable
def set_an_alarm(told):
    import signal

    signal.setitimer(signal.ITIMER_REAL, 100)
    return True


@denied
def raise_its_limits(told):
    import resource

    raised = []
    for what in (resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_NPROC, resource.RLIMIT_FSIZE):
        _, hard = resource.getrlimit(what)
        try:
            resource.setrlimit(what, (hard * 2, hard * 2))
            raised.append(what)
        except (OSError, ValueError):
            continue
    return bool(raised)


@denied
def raise_limits_of_others(told):
    import resource

    resource.prlimit(2, resource.RLIMIT_AS)
    return True
