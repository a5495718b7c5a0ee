"""What a grading service and its clients say to each other: JSON, bounded, read strictly on both sides. Pure.

    request  {"wire", "grader", "id", "settings", "problem", "code"}      code is left out to have a problem made ready
    reply    {"wire", "grader", "id", "verdict"}      or {..., "service"}, or {..., "error": {"code", "message"}}

Both begin with the version of this format and that of the grader. One side never reads what the other wrote in another
version: a verdict would not mean what it is taken for.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from assay.config.schema import settings
from assay.config.values import is_of, type_name
from assay.kernels.config import ASKED, GraderConfig
from assay.kernels.grader import VERSION
from assay.kernels.problems.sources import MAX_CODE_CHARACTERS, SHIPPED, Problem
from assay.kernels.source_text import MAX_SOURCE_CHARACTERS
from assay.kernels.verdicts import Verdict, plain_text
from assay.terminal import shown
from assay.types import Json

WIRE = 1
"""Version of this format; raised with every change after which the two sides would misunderstand each other."""
GRADE, PREPARE, CHECK, HEALTH = "/v1/grade", "/v1/prepare", "/v1/check", "/health"
"""Where a service is asked: a verdict, to make a problem ready, whether it takes some settings, whether it is up."""
KEY_VARIABLE = "ASSAY_GRADER_KEY"
"""The environment variable with the service's key, on both sides."""
MAX_REQUEST_BYTES = 12 * (MAX_CODE_CHARACTERS + MAX_SOURCE_CHARACTERS) + 2**16
"""A character takes at most 12 bytes as JSON escapes; a longer problem or candidate is refused by the grader anyway."""
MAX_MESSAGE = 500
FROM_CLIENT = "client"
"""`Problem.source` of what a client sent, but for the problems that come with Assay."""

_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_PROBLEM = {"level": int, "id": int, "name": str, "code": str, "source": str}
_REQUEST = {"wire", "grader", "id", "settings", "problem", "code"}
_MOST_NUMBER = 10**9
_NAME_CHARACTERS = 200


class RequestError(Exception):
    """A request that is refused.

    Attributes:
        status: HTTP's.
        code: one word for programs (`version`, `settings`, `malformed`, ...).
    """

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


@dataclass(frozen=True, slots=True)
class GradeRequest:
    """What a client asks."""

    id: str
    asked: Mapping[str, Json]
    """Settings, by name; their names and types are right."""
    problem: Problem | None
    code: str | None


def asked_of(config: GraderConfig) -> dict[str, Json]:
    """The settings of a client that a service is to grade with."""
    known = settings(GraderConfig)
    found = {name: getattr(config, name) for name in known if ASKED in known[name].marks}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}


def request_body(
    config: GraderConfig, request_id: str, problem: Problem | None = None, code: str | None = None
) -> bytes:
    """A request as UTF-8. Of a candidate that is too long to be read, only as much is sent as shows that it is."""
    told: dict[str, Json] = {"wire": WIRE, "grader": VERSION, "id": request_id, "settings": asked_of(config)}
    if problem is not None:
        told["problem"] = {
            "level": problem.level,
            "id": problem.id,
            "name": problem.name[:_NAME_CHARACTERS],
            "code": problem.code[: MAX_CODE_CHARACTERS + 1],
            "source": SHIPPED if problem.source == SHIPPED else FROM_CLIENT,
        }
    if code is not None:
        told["code"] = code[: MAX_SOURCE_CHARACTERS + 1]
    return json.dumps(told).encode()


def read_request(body: bytes) -> GradeRequest:
    """The request that some bytes are.

    Raises:
        RequestError: they are none, or one of another version.
    """
    data = _object(body)
    if data.get("wire") != WIRE or data.get("grader") != VERSION:
        raise RequestError(409, "version", other_version(data))
    if unknown := sorted(data.keys() - _REQUEST):
        raise RequestError(400, "malformed", f"the request has unknown keys: {shown(unknown, 100)}")
    request_id, code, problem = data.get("id"), data.get("code"), data.get("problem")
    if not isinstance(request_id, str) or _ID.fullmatch(request_id) is None:
        raise RequestError(400, "malformed", "id must be text of 1 to 64 letters, digits, dots, dashes and underscores")
    if not (code is None or isinstance(code, str)):
        raise RequestError(400, "malformed", f"code must be text, not {shown(code, 40)}")
    read = None if problem is None else _problem(problem)
    return GradeRequest(request_id, _asked(data.get("settings")), read, code)


def other_version(data: Mapping[str, Json]) -> str:
    """What is said of a message of another version."""
    return (
        f"this side has wire format {WIRE} and grader {VERSION}, the other {shown(data.get('wire'), 20)} and "
        f"{shown(data.get('grader'), 20)}, so a verdict would not mean the same on both. Install the same version of "
        "Assay on both."
    )


def _object(body: bytes) -> dict[str, Json]:
    try:
        data = json.loads(body.decode(), parse_constant=_no_number)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        raise RequestError(400, "malformed", f"the body is not JSON: {shown(str(error), 100)}") from error
    if not isinstance(data, dict):
        raise RequestError(400, "malformed", f"the body must be an object, not a {type(data).__name__}")
    return data


def _no_number(name: str) -> Json:
    raise ValueError(f"{name} is no JSON")


def _problem(data: Json) -> Problem:
    if not isinstance(data, dict) or data.keys() != _PROBLEM.keys():
        raise RequestError(400, "malformed", f"problem must be an object with {', '.join(_PROBLEM)}, and nothing else")
    for name, kind in _PROBLEM.items():
        if type(data[name]) is not kind:
            raise RequestError(400, "malformed", f"problem.{name} must be {kind.__name__}, not {shown(data[name], 40)}")
    if not all(0 <= data[name] <= _MOST_NUMBER for name in ("level", "id")):
        raise RequestError(400, "malformed", f"problem.level and problem.id must be from 0 to {_MOST_NUMBER}")
    if len(data["name"]) > _NAME_CHARACTERS or data["source"] not in (SHIPPED, FROM_CLIENT):
        raise RequestError(
            400, "malformed", f"problem.name has at most {_NAME_CHARACTERS} characters, source is shipped or client"
        )
    try:
        data["code"].encode()
    except UnicodeEncodeError as error:
        raise RequestError(400, "malformed", "problem.code is not text that UTF-8 can hold") from error
    return Problem(data["level"], data["id"], plain_text(data["name"]), data["code"], data["source"])


def _asked(data: Json) -> dict[str, Json]:
    """Settings whose names and types are right."""
    known = settings(GraderConfig)
    if not isinstance(data, dict):
        raise RequestError(400, "malformed", "settings must be an object")
    for name, value in data.items():
        if name not in known or ASKED not in known[name].marks:
            allowed = ", ".join(each for each in known if ASKED in known[each].marks)
            raise RequestError(
                422,
                "settings",
                f"{shown(name, 60)} cannot be asked for, only {allowed}: the service decides all else",
            )
        if not is_of(value, known[name].annotation):
            wanted = type_name(known[name].annotation)
            raise RequestError(422, "settings", f"settings.{name} must be {wanted}, not {shown(value, 60)}")
    return {name: tuple(value) if isinstance(value, list) else value for name, value in data.items()}


def reply_body(request_id: str, **told: Json) -> bytes:
    """A reply as UTF-8: `verdict`, `service` or `error`. Numbers that JSON lacks become null."""
    return json.dumps({"wire": WIRE, "grader": VERSION, "id": request_id, **finite(told)}).encode()


def finite(value: Json) -> Any:
    """Plain data with null in place of infinities and of what is not a number."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: finite(part) for name, part in value.items()}
    return [finite(part) for part in value] if isinstance(value, list | tuple) else value


def read_reply(body: bytes, request_id: str) -> dict[str, Json]:
    """The reply that some bytes are, to a request.

    Raises:
        ValueError: they are none.  VersionError: it is of another version.
    """
    try:
        data = _object(body)
    except RequestError as error:
        raise ValueError(str(error)) from error
    if data.get("wire") != WIRE or data.get("grader") != VERSION:
        if "wire" in data and "grader" in data:
            raise VersionError(other_version(data))
        raise ValueError("it is not a reply of a grading service")
    if data.get("id") not in (request_id, ""):  # empty where the service did not come to read the request
        raise ValueError("it answers another request")
    return data


class VersionError(Exception):
    """The other side is of another version."""


def read_verdict(reply: Mapping[str, Json]) -> Verdict:
    """The verdict that a reply holds.

    Raises:
        ValueError: it holds none.
    """
    told = reply.get("verdict")
    if not isinstance(told, dict):
        raise ValueError("it holds no verdict")
    try:
        verdict = Verdict.from_json(told)
    except (TypeError, RecursionError) as error:
        raise ValueError(str(error)) from error
    if verdict.tests_passed > verdict.tests_total:
        raise ValueError("no verdict: more calls were right than there were")
    return verdict


def error_of(reply: Mapping[str, Json]) -> str:
    """What a reply says is wrong; empty where it says nothing."""
    told = reply.get("error")
    message = told.get("message") if isinstance(told, dict) else None
    return plain_text(message)[:MAX_MESSAGE] if isinstance(message, str) else ""
