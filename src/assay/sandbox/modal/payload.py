"""Jobs and results as bytes, for machines that are not ours: JSON for the small parts, raw bytes for the buffers.

    encode_job(job, token) --> container --> encode_answer(result, token, ...) --> open_answer(...).result(job)

Nothing here is pickled, and nothing that comes back is believed without a look: an answer is read against the job that
it should belong to, and whatever does not have that job's form is a `DataError`. The token is drawn per job and sent to
one container only, so that a container can answer for no job but its own.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from typing import Any

from assay.errors import AssayError, DataError
from assay.sandbox.base import REPORT_BYTES, STDERR_BYTES, Buffer, End, Job, JobResult, Limits, Round
from assay.sandbox.lockstep import Group
from assay.types import Json

_HEAD = struct.Struct("<8sI")
"""Kind of payload with its version, and the length of the JSON that follows; the buffers come after it."""
_JOB, _ANSWER = b"assayJ01", b"assayA01"
_GROUP, _ANSWERS = b"assayG01", b"assayB01"
"""Jobs in step, and their answers: JSON with the lengths of the payloads that follow it."""

_ENDS: tuple[End, ...] = ("ok", "crash", "timeout", "memory", "infra")
"""What a container can say; only a caller stops a job, and the caller is here."""
_ANSWER_JSON_BYTES = 8 * (REPORT_BYTES + STDERR_BYTES)
"""Longest JSON of an answer: escapes make text at most six times longer."""
_MESSAGE_CHARS = 2000


def encode_job(job: Job, token: str) -> bytes:
    """What a container needs to run a job."""
    header = {
        "token": token,
        "source": job.source,
        "harness": job.harness,
        "rounds": [[[memoryview(b).nbytes for b in r.inputs], list(r.outputs)] for r in job.rounds],
        "header": job.header,
        "limits": asdict(job.limits),
        "profile": job.profile,
        "seed": job.seed,
    }
    return _pack(_JOB, header, [buffer for r in job.rounds for buffer in r.inputs])


def decode_job(payload: bytes) -> tuple[Job, str]:
    """A job and its token.

    Raises:
        DataError: this is not a job, or is one of another version.
    """
    header, body = _unpack(_JOB, payload)
    try:
        rounds, at = [], 0
        for inputs, outputs in header["rounds"]:
            views = []
            for size in inputs:
                views.append(body[at : at + size])
                at += size
            rounds.append(Round(tuple(views), tuple(outputs)))
        if at != len(body):
            raise DataError(f"A job's inputs have {at} bytes, but {len(body)} came: part of it was lost on the way.")
        job = Job(
            source=header["source"],
            harness=header["harness"],
            rounds=tuple(rounds),
            header=header["header"],
            limits=Limits(**header["limits"]),
            profile=header["profile"],
            seed=header["seed"],
        )
        return job, str(header["token"])
    except (KeyError, TypeError, ValueError, AssayError) as error:
        raise DataError(
            f"A job cannot be read, perhaps because it comes from another version of Assay: {error}"
        ) from None


def encode_group(group: Group, token: str) -> bytes:
    """What a container needs to run jobs in step."""
    parts = [encode_job(job, token) for job in group.jobs]
    return _pack(_GROUP, {"token": token, "order": list(group.order), "sizes": [len(part) for part in parts]}, parts)


def is_group(payload: bytes) -> bool:
    """Whether a payload asks for jobs in step."""
    return payload.startswith(_GROUP)


def decode_group(payload: bytes) -> tuple[Group, str]:
    """Jobs in step and their token. They pause: nothing of one runs in the other's turn.

    Raises:
        DataError: this is not such a payload.
    """
    header, body = _unpack(_GROUP, payload)
    try:
        jobs = tuple(replace(decode_job(bytes(part))[0], pause=True) for part in _parts(header, body))
        return Group(jobs, tuple(header["order"])), str(header["token"])
    except (KeyError, TypeError, ValueError, AssayError) as error:
        raise DataError(f"Jobs in step cannot be read: {error}") from None


def encode_answers(results: Sequence[JobResult], token: str, walls: str) -> bytes:
    """What goes back for jobs in step."""
    parts = [encode_answer(result, token, walls) for result in results]
    return _pack(_ANSWERS, {"token": token, "refused": False, "sizes": [len(part) for part in parts]}, parts)


def _parts(header: dict[str, Any], body: memoryview) -> list[memoryview]:
    sizes = header.get("sizes")
    if not isinstance(sizes, list) or any(type(size) is not int or size < 0 for size in sizes):
        raise DataError("A payload of several parts does not say how long they are.")
    if sum(sizes) != len(body):
        raise DataError(f"Parts of {sum(sizes)} bytes were announced, and {len(body)} came.")
    ends = list(accumulate(sizes))
    return [body[end - size : end] for size, end in zip(sizes, ends, strict=True)]


def encode_answer(result: JobResult, token: str, walls: str, refused: bool = False) -> bytes:
    """What goes back. `walls` says what held the candidate; `refused`: no job of this harness can run here."""
    header = {
        "token": token,
        "walls": walls,
        "refused": refused,
        "end": result.end,
        "message": result.message[:_MESSAGE_CHARS],
        "rounds": len(result.outputs),
        "exit_code": result.exit_code,
        "signal": result.signal,
        "stderr": result.stderr,
        "report": result.report,
        "wall_s": result.wall_s,
        "cpu_s": result.cpu_s,
        "setup_s": result.setup_s,
        "round_s": list(result.round_s),
    }
    return _pack(_ANSWER, header, [buffer for outputs in result.outputs for buffer in outputs])


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of which nothing but its form was checked."""

    token: str
    refused: bool
    header: dict[str, Any]
    body: memoryview
    several: bool = False
    """Whether it has the answers of jobs in step."""

    def results(self, group: Group) -> tuple[JobResult, ...]:
        """The results of jobs in step, if they have the form that results of these jobs have.

        Raises:
            DataError: they have not, or one answer came for all (a container that could run none of them).
        """
        if not self.several:
            return (self.result(group.jobs[0]),) * len(group.jobs)
        parts = _parts(self.header, self.body)
        if len(parts) != len(group.jobs):
            raise DataError(f"{len(parts)} answers came for {len(group.jobs)} jobs in step.")
        answers = [open_answer(bytes(part)) for part in parts]
        return tuple(a.result(job, in_step=True) for a, job in zip(answers, group.jobs, strict=True))

    def result(self, job: Job, in_step: bool = False) -> JobResult:
        """The result, if it has the form that results of this job have; `stopped` is one only for jobs in step.

        Raises:
            DataError: it has not; the message says where.
        """
        header = self.header
        if self.several:
            raise DataError("Several answers came for one job.")
        end, rounds = header.get("end"), header.get("rounds")
        if end not in _ENDS and not (in_step and end == "stopped"):
            raise DataError(f"An answer ends in {_shown(end)}, which is not one of {', '.join(_ENDS)}.")
        if type(rounds) is not int or not 0 <= rounds <= len(job.rounds) or (end == "ok" and rounds < len(job.rounds)):
            raise DataError(f"An answer ({end}) has {_shown(rounds)} rounds of {len(job.rounds)}.")
        round_s = header.get("round_s")
        if not isinstance(round_s, list) or len(round_s) > rounds:
            raise DataError("An answer has no list of seconds per round.")
        return JobResult(
            end=end,
            message=f"{_text(header, 'message', _MESSAGE_CHARS)} [walls: {_text(header, 'walls', 200)}]",
            outputs=self._outputs(job, rounds),
            exit_code=_status(header, "exit_code"),
            signal=_status(header, "signal"),
            stderr=_text(header, "stderr", STDERR_BYTES),
            report=header.get("report"),
            wall_s=_seconds(header.get("wall_s")),
            cpu_s=_seconds(header.get("cpu_s")),
            setup_s=_seconds(header.get("setup_s")),
            round_s=tuple(_seconds(item) for item in round_s),
        )

    def _outputs(self, job: Job, rounds: int) -> tuple[tuple[bytes, ...], ...]:
        wanted = [item.outputs for item in job.rounds[:rounds]]
        if (total := sum(map(sum, wanted))) != len(self.body):
            raise DataError(f"An answer has {len(self.body)} bytes of outputs where the job asked for {total}.")
        at, taken = 0, []
        for sizes in wanted:
            outputs = []
            for size in sizes:
                outputs.append(bytes(self.body[at : at + size]))
                at += size
            taken.append(tuple(outputs))
        return tuple(taken)


def open_answer(payload: object) -> Answer:
    """An answer, if that is what this is.

    Raises:
        DataError: it is not.
    """
    if not isinstance(payload, bytes):
        raise DataError(f"A container answered with a {type(payload).__name__} where bytes were expected.")
    several = payload.startswith(_ANSWERS)
    header, body = _unpack(_ANSWERS if several else _ANSWER, payload, _ANSWER_JSON_BYTES)
    token, refused = header.get("token"), header.get("refused")
    if not isinstance(token, str) or not isinstance(refused, bool):
        raise DataError("An answer does not say whose it is.")
    return Answer(token, refused, header, body, several)


def _pack(kind: bytes, header: Json, buffers: Sequence[Buffer]) -> bytes:
    text = json.dumps(header).encode("ascii")
    return b"".join([_HEAD.pack(kind, len(text)), text, *(memoryview(buffer).cast("B") for buffer in buffers)])


def _unpack(kind: bytes, payload: bytes, longest: int | None = None) -> tuple[dict[str, Any], memoryview]:
    view = memoryview(payload)
    if len(view) < _HEAD.size:
        raise DataError(f"A payload of {len(view)} bytes is too short to be one of Assay's.")
    found, length = _HEAD.unpack_from(view)
    if found != kind:
        raise DataError(
            f"A payload begins with {found!r} where {kind!r} was expected: another version of Assay, or garbage."
        )
    if length > len(view) - _HEAD.size or (longest is not None and length > longest):
        raise DataError(f"A payload of {len(view)} bytes names {length} bytes of JSON: cut short, or garbage.")
    try:
        header = json.loads(bytes(view[_HEAD.size : _HEAD.size + length]))
    except (ValueError, RecursionError) as error:
        raise DataError(f"The JSON of a payload cannot be read: {error}") from None
    if not isinstance(header, dict):
        raise DataError("The JSON of a payload is not an object.")
    return header, view[_HEAD.size + length :]


def _text(header: dict[str, Any], name: str, longest: int) -> str:
    value = header.get(name)
    if not isinstance(value, str):
        raise DataError(f"An answer has {_shown(value)} for its {name}.")
    return value[:longest]


def _status(header: dict[str, Any], name: str) -> int | None:
    value = header.get(name)
    if value is not None and (type(value) is not int or not 0 <= value < 1 << 16):
        raise DataError(f"An answer has {_shown(value)} for its {name}.")
    return value


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise DataError(f"An answer has {_shown(value)} for a number of seconds.")
    return float(value)


def _shown(value: object) -> str:
    return repr(value)[:80]
