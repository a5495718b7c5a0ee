"""What this machine offers to hold untrusted code, found out by trying it.

A missing feature is never worked around: workers are refused with a message that names what is missing and the cure.
What only a running worker can tell (nested namespaces, the filter itself), it finds out with a trial child when it
starts.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from assay.errors import SandboxError
from assay.sandbox.host.bubblewrap import Mode
from assay.sandbox.host.cgroups import find_home
from assay.sandbox.inside import linux
from assay.sandbox.inside.measure import EVERY_S, MOST_PROCESSES
from assay.sandbox.inside.syscalls import NUMBERS, machine
from assay.types import Check

TRIAL_S = 30.0
OLDEST_KERNEL = (5, 9)
"""close_range; clone3 and sealing against future writes are older."""
OLDEST_BUBBLEWRAP = (0, 5)

_MODES: dict[Mode, list[str]] = {
    "drop": ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"],
    "user": ["--unshare-user", "--uid", "65534", "--gid", "65534"],
    "nobody": ["--unshare-user", "--uid", "65534", "--gid", "65534"],
}

NAMESPACE_CURE = (
    "allow user namespaces: sysctl kernel.unprivileged_userns_clone=1 and user.max_user_namespaces=15000 (where they "
    "exist), kernel.apparmor_restrict_unprivileged_userns=0 or an AppArmor profile for bwrap (Ubuntu 24.04); in Docker "
    "--security-opt seccomp=unconfined --security-opt apparmor=unconfined and, as root, --cap-add SYS_ADMIN"
)


@dataclass(frozen=True, slots=True)
class Missing:
    """A feature that is not here, what was seen, and what to do."""

    feature: str
    seen: str
    cure: str


@dataclass(frozen=True, slots=True)
class Features:
    """What was found. Workers can be walled in if `missing` is empty."""

    bwrap: str
    """Path of bubblewrap, empty where absent."""
    mode: Mode | None
    """How a worker gets its namespaces, None where no way works."""
    missing: tuple[Missing, ...]


def probe(search_path: str | None = None) -> Features:
    """Try out what walls need; takes some 50 ms. `search_path` replaces PATH in looking for bubblewrap."""
    missing = [*_system(), *_seccomp(), *_sealing()]
    bwrap = shutil.which("bwrap", path=search_path) or ""
    mode: Mode | None = None
    if not bwrap:
        missing.append(
            Missing(
                "bubblewrap",
                "no program bwrap in PATH",
                "install it: apt-get install bubblewrap, or the like of your system",
            )
        )
    elif (version := _bubblewrap_version(bwrap)) < OLDEST_BUBBLEWRAP:
        missing.append(Missing("bubblewrap", f"{bwrap} is version {version}", "install version 0.5 or newer"))
    elif not missing:
        mode, seen = _working_mode(bwrap)
        if mode is None:
            missing.append(Missing("namespaces", seen, NAMESPACE_CURE))
    return Features(bwrap, mode, tuple(missing))


def require(features: Features) -> Mode:
    """The mode to start workers in.

    Raises:
        SandboxError: something is missing.
    """
    if features.missing or features.mode is None:
        wanting = "".join(f"\n  {lack.feature}: {lack.seen}. To cure it, {lack.cure}." for lack in features.missing)
        raise SandboxError(
            f"Untrusted code cannot be isolated on this machine, so none is run.{wanting}\nsandbox=unsafe runs it "
            "without any walls: use it only where it does not matter what the code does to this account."
        )
    return features.mode


def checks() -> list[Check]:
    """Whether untrusted code can be walled in here: one row for each feature that is missing, or one for all."""
    features = probe()
    if not features.missing:
        memory = (
            f"control groups in {home} bound all processes of a job together"
            if (home := find_home())
            else f"no control group can be used here: the worker measures a job's processes {1 / EVERY_S:.0f} times a "
            f"second, and allows {MOST_PROCESSES} (LocalConfig.cgroup names a group)"
        )
        walls = Check("sandbox", True, f"{features.bwrap}, seccomp and namespaces (mode {features.mode})")
        return [walls, Check("sandbox: memory", True, memory)]
    return [Check(f"sandbox: {lack.feature}", False, lack.seen, lack.cure) for lack in features.missing]


def _system() -> list[Missing]:
    if not sys.platform.startswith("linux"):
        return [Missing("Linux", f"this is {sys.platform}", "run it on Linux, or in a Linux virtual machine")]
    found = []
    release = tuple(int(part) for part in re.findall(r"\d+", platform.release())[:2])
    if release < OLDEST_KERNEL:
        found.append(Missing("a kernel", f"Linux {platform.release()}", "use 5.9 or newer"))
    if machine() not in NUMBERS or sys.byteorder != "little" or sys.maxsize < 1 << 32:
        known = " and ".join(NUMBERS)
        found.append(Missing("a known processor", f"this is {platform.machine()}", f"run it on 64-bit {known}"))
    return found


def _seccomp() -> list[Missing]:
    try:
        actions = Path("/proc/sys/kernel/seccomp/actions_avail").read_text(encoding="ascii").split()
    except OSError:
        actions = []
    if {"errno", "kill_process", "allow"} <= set(actions):
        return []
    return [Missing("seccomp", "the kernel offers no filters", "use a kernel built with CONFIG_SECCOMP_FILTER")]


def _sealing() -> list[Missing]:
    try:
        os.close(linux.sealed_file("assay-probe", 4096, linux.SEAL_FUTURE_WRITE | linux.SEAL_SEAL))
    except (OSError, AttributeError) as error:
        return [Missing("sealed memory files", str(error), "use a kernel with memfd_create (5.1 or newer)")]
    return []


def _bubblewrap_version(bwrap: str) -> tuple[int, ...]:
    done = subprocess.run([bwrap, "--version"], capture_output=True, text=True, timeout=TRIAL_S, check=False)
    return tuple(int(part) for part in re.findall(r"\d+", done.stdout)[:2])


def _working_mode(bwrap: str) -> tuple[Mode | None, str]:
    """The first mode in which bubblewrap can run a program, or None and what it said."""
    modes: list[Mode] = ["drop", "nobody"] if os.geteuid() == 0 else ["user"]
    said = []
    for mode in modes:
        words = [bwrap, "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", *_MODES[mode]]
        words += ["--ro-bind", "/", "/", "--proc", "/proc", "--", "/bin/true"]
        nobody = mode == "nobody"
        try:
            done = subprocess.run(
                words,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=TRIAL_S,
                check=False,
                cwd="/",
                user=65534 if nobody else None,
                group=65534 if nobody else None,
                extra_groups=[] if nobody else None,
            )
        except OSError as error:
            said.append(f"{mode}: {error}")
            continue
        if done.returncode == 0:
            return mode, ""
        said.append(f"{mode}: {done.stderr.strip()[:300] or f'exit status {done.returncode}'}")
    return None, "bubblewrap failed (" + "; ".join(said) + ")"
