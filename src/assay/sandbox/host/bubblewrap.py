"""The command that starts a worker: what of this machine it sees, in which namespaces, and as whom.

It sees the system's programs and libraries, this Python with its packages, and Assay, all read-only; a scratch folder;
a handful of device files. No home, no working directory, no /etc, no environment, no network.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISDIR
from typing import Literal

Mode = Literal["user", "drop", "nobody"]
"""How a worker becomes the user nobody: `user`, an ordinary user makes a user namespace; `drop`, root builds the view
and the worker then gives up root; `nobody`, root becomes an ordinary user first."""

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64")
_ETC = ("/etc/ld.so.cache", "/etc/alternatives")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")

ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "USER": "nobody",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
"""The whole environment of a worker, besides HOME and TMPDIR. A user, because there is no file of users and PyTorch's
compiler asks for one; one thread each, since a fork of several would hang; one hash seed, so that a job does the same
on every worker."""


@dataclass(frozen=True, slots=True)
class View:
    """What a worker sees of the file system, besides the system's own folders."""

    readable: tuple[str, ...]
    """Folders and files, at their own paths, read-only."""
    hidden: tuple[str, ...]
    """What lies under them and is covered."""
    import_roots: tuple[str, ...]
    """The worker's import path, before that of Python itself."""
    devices: tuple[str, ...]
    """Device files, besides the harmless ones."""
    scratch: str
    """Where each child finds its private folder."""


def view(
    import_roots: Sequence[str], readable: Sequence[str], hidden: Sequence[str], devices: Sequence[str] = ()
) -> View:
    """What a worker of this interpreter sees: its prefixes, site-packages, Assay, and what the caller adds."""
    package = Path(__file__).resolve().parents[2]
    packages = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    prefixes = [sys.prefix, sys.base_prefix, str(Path(sys.executable).parent)]
    store = ["/nix/store"] if sys.base_prefix.startswith("/nix/store/") else []
    wanted = [*prefixes, *store, *packages, str(package), *import_roots, *readable]
    outermost = _outermost(os.path.abspath(path) for path in wanted if os.path.exists(path))
    return View(
        readable=tuple(path for path in outermost if not _within(path, _SYSTEM)),
        hidden=tuple(os.path.abspath(path) for path in hidden if os.path.exists(path)),
        import_roots=(str(package.parent), *(os.path.abspath(root) for root in import_roots), *packages),
        devices=tuple(sorted(set(devices) - set(_DEVICES))),
        scratch="/scratch" if any(_within(path, ("/tmp",)) for path in outermost) else "/tmp",
    )


def unreadable(seen: View) -> list[str]:
    """What of a view only its owner may read, so that workers started by root, which run as `nobody`, could not."""
    return [path for path in seen.readable if (mode := os.stat(path).st_mode) & 0o005 < (5 if S_ISDIR(mode) else 4)]


def _within(path: str, folders: Iterable[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)


def _outermost(paths: Iterable[str]) -> list[str]:
    """The paths that lie in no other of them, sorted."""
    kept: list[str] = []
    for path in sorted(set(paths)):
        if not _within(path, kept):
            kept.append(path)
    return kept


def _parents(paths: Iterable[str]) -> list[str]:
    """Every folder above these paths that is not there anyway, outermost first."""
    folders = {str(parent) for path in paths for parent in Path(path).parents}
    return sorted(folder for folder in folders - {"/", "/tmp"} if not _within(folder, _SYSTEM))


def command(
    bwrap: str, mode: Mode, seen: View, environment: Mapping[str, str], info_fd: int, program: Sequence[str]
) -> list[str]:
    """The bubblewrap command that runs `program` in a sealed-off view."""
    words = [bwrap, "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    if mode == "drop":
        words += ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
        # As root, bubblewrap covers parts of /proc. The worker takes that away, before it becomes nobody: a child that
        # drives devices mounts a /proc of its own, which the kernel refuses beside a covered one.
        words += ["--cap-add", "CAP_SYS_ADMIN"] if seen.devices else []
    else:
        words += ["--unshare-user", "--uid", "65534", "--gid", "65534", "--cap-drop", "ALL"]
    # Bubblewrap's own first process dies with its parent, and everything in the namespace with it. Where root started
    # it, the worker itself could not be killed so: a parent without capabilities may not signal another user.
    words += ["--die-with-parent", "--new-session", "--hostname", "assay", "--clearenv"]
    for name, value in {**ENVIRONMENT, "HOME": seen.scratch, "TMPDIR": seen.scratch, **environment}.items():
        words += ["--setenv", name, value]
    for folder in _SYSTEM:
        if os.path.islink(folder):
            words += ["--symlink", os.readlink(folder), folder]
        elif os.path.isdir(folder):
            words += ["--ro-bind", folder, folder]
    words += ["--perms", "1777", "--tmpfs", "/tmp"]
    for parent in _parents([*seen.readable, *_ETC, *_DEVICES, *seen.devices]):
        words += ["--perms", "0755", "--dir", parent]  # bubblewrap would make them for its own user alone
    for path in _ETC:
        words += ["--ro-bind-try", path, path]
    for path in seen.readable:
        words += ["--ro-bind", path, path]
    for path in seen.hidden:
        words += ["--tmpfs", path, "--remount-ro", path] if os.path.isdir(path) else ["--dev-bind", "/dev/null", path]
    for path in (*_DEVICES, *seen.devices):
        words += ["--dev-bind", path, path]
    if not any(_within(path, ("/dev/shm",)) for path in seen.readable):  # what is shown below it made it a folder
        words += ["--symlink", seen.scratch, "/dev/shm"]
    words += ["--proc", "/proc"]
    if seen.scratch != "/tmp":
        words += ["--perms", "1777", "--tmpfs", seen.scratch, "--remount-ro", "/tmp"]
    words += ["--remount-ro", "/", "--chdir", "/"]
    return [*words, "--info-fd", str(info_fd), "--", *program]


def kill(process: subprocess.Popen[bytes]) -> None:
    """End what `command` started, in a session of its own, at any moment.

    Until its child has asked to die with it, that must be ended too: it would wait for its parent for ever, or go on
    alone. At first it is in its parent's group, and then in one of its own.
    """
    if process.returncode is not None:  # reaped: its number may be another process's by now
        return
    with contextlib.suppress(OSError):
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="ascii").split()
        for child in children:
            os.kill(int(child), signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
