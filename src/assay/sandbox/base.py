"""Running untrusted code: what goes in, what comes out, and what a harness is.

    Job --Sandbox.run--> JobResult

A job is one candidate (the source of one Python module) in a process of its own. A *harness*, a trusted module that the
warm worker imported beforehand, says how to use the candidate; the sandbox knows nothing about kernels or languages.
Inputs reach the child one round at a time, and all that comes back is raw bytes in buffers whose sizes the job fixed.
Nothing that a child writes, reports or exits with is a verdict: the holder of the `JobResult` computes verdicts.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Literal, Protocol, get_args

from assay.errors import ConfigError

if TYPE_CHECKING:  # every worker imports this module, and need not import NumPy for it
    from assay.types import Json

Buffer = bytes | bytearray | memoryview
"""Contiguous bytes. `memoryview(array)` passes a NumPy array without a copy; it must not change while the job runs."""

Profile = Literal["numerics", "compile", "gpu", "gpu-compile"]
"""`numerics`: no new processes, no exec. `compile`: the same walls, but compilers may be forked and executed. `gpu` and
`gpu-compile`: the same two, with what CUDA needs besides, on the devices of the sandbox."""

End = Literal["ok", "stopped", "crash", "timeout", "memory", "infra"]
"""How a job ended: every round was delivered and acknowledged and the child left with status 0; the caller stopped it
after a round; it exited early, failed or died of a signal; it was killed at its wall or CPU limit; it ran out of its
memory; or the sandbox itself failed, which says nothing about the candidate."""

MAX_ROUNDS = 1000
STDERR_BYTES = 4096
"""What is kept of a child's standard output and error."""
REPORT_BYTES = 1 << 18
"""Room for a child's report, as JSON."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one job may use. A limit is enforced by the kernel or by a trusted process, never by the child."""

    wall_s: float = 10.0
    """Seconds in which the child, not its caller, is to move, over all rounds."""
    cpu_s: float = 10.0
    """CPU seconds of each process of the job; rounded up to whole seconds."""
    memory_mb: int = 2048
    """MiB on top of what the warm worker shares with the child: of address space for each process (under the GPU
    profiles of private writable memory, since CUDA reserves terabytes of addresses), and of memory for the whole job
    where cgroups are at hand."""
    tmp_mb: int = 64
    """MiB of the private `/tmp`, which is also the longest file that can be written."""
    processes: int = 64
    """Processes and threads together."""
    open_files: int = 256

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(f"Limits.{item.name}={value} would let no job run: give a finite number above 0.")


@dataclass(frozen=True, slots=True)
class Round:
    """One exchange with a child: raw inputs, and the exact sizes in bytes of the outputs it must fill."""

    inputs: tuple[Buffer, ...] = ()
    outputs: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if any(size < 0 for size in self.outputs):
            raise ConfigError(f"Round.outputs={self.outputs}: the size of an output is 0 bytes or more.")


@dataclass(frozen=True, slots=True)
class Job:
    """One candidate and all that it is given. Pure data, so that a job whose worker died can be run again."""

    source: str
    """The candidate: the text of one Python module. Only the child reads it."""
    harness: str
    """Dotted name of a module that follows `Harness`; imported by the worker before any candidate."""
    rounds: tuple[Round, ...] = (Round(),)
    """Delivered one at a time: round i+1 after the outputs of round i were taken."""
    header: Json = None
    """Parameters for the harness (shapes, dtypes, a seed of the initial weights). The candidate can read them all."""
    limits: Limits = Limits()
    profile: Profile = "numerics"
    pause: bool = False
    """Stop every thread of the child while its caller decides, so that nothing of it runs between two rounds. Processes
    that it started under a compile profile run on, and so does what a GPU was told to do."""
    seed: int = 0
    """Seeds `random` in the child before the harness runs; children would otherwise share the worker's state."""

    def __post_init__(self) -> None:
        if not 1 <= len(self.rounds) <= MAX_ROUNDS:
            raise ConfigError(f"a Job has 1 to {MAX_ROUNDS} rounds, this one has {len(self.rounds)}.")
        if self.profile not in get_args(Profile):
            raise ConfigError(f"Job.profile={self.profile!r} is not one of {', '.join(get_args(Profile))}.")


@dataclass(frozen=True, slots=True)
class JobResult:
    """What a job left behind. Everything except `stderr` and `report` was measured or taken outside the child."""

    end: End
    message: str
    """How it ended, in the sandbox's own words."""
    outputs: tuple[tuple[bytes, ...], ...] = ()
    """Per acknowledged round, bytes of exactly the sizes asked for; those of the last round were taken once the child
    was dead. Whether they are right is not known here."""
    exit_code: int | None = None
    signal: int | None = None
    """The signal that killed the child, including one that the sandbox sent."""
    stderr: str = ""
    """Untrusted text, at most `STDERR_BYTES` bytes before decoding."""
    report: Json = None
    """What the harness returned, through the child's hands: untrusted hints, None where absent or damaged."""
    wall_s: float = 0.0
    """Seconds from the moment its walls stood to its end, less those in which it waited for its caller."""
    cpu_s: float = 0.0
    """CPU seconds, user and system, of the child and those of its children that it waited for."""
    setup_s: float = 0.0
    """Those of them until the child asked for its first inputs."""
    round_s: tuple[float, ...] = ()
    """Seconds from the delivery of each acknowledged round to its acknowledgement."""
    retried: bool = False
    """Whether this is the second attempt, made because the first worker died."""


AfterRound = Callable[[int, tuple[bytes, ...]], bool | Awaitable[bool]]
"""Called with the number and the outputs of each acknowledged round but the last; False stops the job there. The
child's clock stands still meanwhile. After a retry it is called for round 0 again."""


class Sandbox(Protocol):
    """Runs jobs. An implementation may queue them, and retries those that its own failures lost."""

    async def run(self, job: Job, after_round: AfterRound | None = None) -> JobResult:
        """The result of one job. Never raises for anything a candidate does.

        Raises:
            SandboxError: no job at all can be run here (missing features, unknown harness).
        """
        ...

    async def close(self) -> None:
        """End every process and give back files; jobs in flight end as `infra`. Safe to call twice."""
        ...


ReadInputs = Callable[[], "list[memoryview] | None"]
"""The inputs of the next round, private and writable; None when there are no more rounds. Blocks."""


class WriteOutputs(Protocol):
    """Hands back the outputs of the round that was read last."""

    def __call__(self, outputs: Sequence[Buffer], short: bool = False) -> None:
        """Raises ValueError where a size is not the one asked for. With `short` an output may be shorter: the rest of
        its buffer stays zero, and costs nothing."""
        ...


class Harness(Protocol):
    """A trusted module, found by its name. It shares the child with the candidate, so it can vouch for nothing."""

    def preload(self) -> None:
        """Import and warm what every job needs, once, in the worker. Must leave exactly one thread, hold no secret
        and touch no device: every child is a fork of this process."""
        ...

    def execute(self, source: str, header: Json, read_inputs: ReadInputs, write_outputs: WriteOutputs) -> Json:
        """Run one candidate, inside the child, round by round; returns the report. An exception ends in `crash`."""
        ...
