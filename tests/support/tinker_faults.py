"""Faults between the SDK and a server that is right: ASGI middleware that alters requests and answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from tinker.proto import tinker_public_pb2 as pb

App = Callable[[Any, Any, Any], Awaitable[None]]
Message = MutableMapping[str, Any]
API = "/api/v1/"


@dataclass
class Call:
    """One request, and the answer that the server gave to it."""

    path: str
    """Below /api/v1/."""
    body: bytes
    status: int = 200
    answer: bytes = b""
    scope: Any = None

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def proto(self) -> Any:
        message = pb.ForwardBackwardRequest()
        message.ParseFromString(self.body)
        return message


@dataclass
class Fault:
    """Alters what passes; the base class alters nothing. `kinds` has what each future was asked for."""

    kinds: dict[str, str] = field(default_factory=dict)

    def asked(self, call: Call) -> None:
        """Alter a request, in place."""

    def answered(self, call: Call) -> None:
        """Alter an answer, in place."""

    def result(self, call: Call, kind: str) -> None:
        """Alter the result of a future that was asked for by a request to `kind`."""

    async def held(self, call: Call, kind: str) -> None:
        """Hold a request up before the server gets it; `kind` as for `result`."""

    def again(self, call: Call) -> Sequence[Call]:
        """Requests that the server gets before this one, and whose answers nobody hears."""
        return ()

    def cut(self, call: Call) -> bool:
        """Whether the connection breaks in the middle of the answer."""
        return False


class Proxy:
    """The server behind a fault, which may be changed at any time. `log` has the requests that passed."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.fault = Fault()
        self.log: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        fault, call = self.fault, Call(scope["path"].removeprefix(API), await _read(receive), scope=scope)
        self.log.append(call.path)
        fault.asked(call)
        kind = fault.kinds.get(call.json["request_id"], "") if call.path == "retrieve_future" else ""
        await fault.held(call, kind)
        for other in fault.again(call):
            await self._forward(replace(other))
        start = await self._forward(call)
        fault.answered(call)
        if call.path == "retrieve_future":
            fault.result(call, kind)
        elif b'"request_id"' in call.answer:
            fault.kinds[json.loads(call.answer)["request_id"]] = call.path
        headers = [(k, v) for k, v in start.get("headers", []) if k.lower() != b"content-length"]
        headers.append((b"content-length", str(len(call.answer)).encode()))
        await send({"type": "http.response.start", "status": call.status, "headers": headers})
        if not fault.cut(call):  # else uvicorn closes the connection of an answer that is not whole
            await send({"type": "http.response.body", "body": call.answer})

    async def _forward(self, call: Call) -> Message:
        started: Message = {}
        parts: list[bytes] = []
        unread = [call.body]

        async def receive() -> Message:
            return {"type": "http.request", "body": unread.pop() if unread else b"", "more_body": False}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                started.update(message)
            else:
                parts.append(message.get("body", b""))

        headers = [(k, v) for k, v in call.scope["headers"] if k.lower() != b"content-length"]
        headers.append((b"content-length", str(len(call.body)).encode()))
        await self.app({**call.scope, "headers": headers}, receive, send)
        call.status, call.answer = started["status"], b"".join(parts)
        return started


async def _read(receive: Any) -> bytes:
    parts: list[bytes] = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


def _scaled(call: Call, factor: Callable[[Any, list[Any]], float]) -> None:
    """Multiply the weights of a cross_entropy gradient, as another normalisation would."""
    message = call.proto()
    if message.forward_only or message.loss_fn != "cross_entropy":
        return
    weights = [np.frombuffer(d.loss_fn_inputs["weights"].dense, np.float32) for d in message.data]
    for datum, values in zip(message.data, weights, strict=True):
        datum.loss_fn_inputs["weights"].dense = (values * np.float32(factor(values, weights))).tobytes()
    call.body = message.SerializeToString()


class _Gradient(Fault):
    def factor(self, values: Any, batch: list[Any]) -> float:
        raise NotImplementedError

    def asked(self, call: Call) -> None:
        if call.path == "forward_backward":
            _scaled(call, self.factor)


class MeanOverWeights(_Gradient):
    """The loss is divided by the sum of weights."""

    def factor(self, values: Any, batch: list[Any]) -> float:
        return 1 / max(1e-9, sum(float(np.abs(v).sum()) for v in batch))


class MeanOverBatch(_Gradient):
    """The loss is divided by the number of sequences."""

    def factor(self, values: Any, batch: list[Any]) -> float:
        return 1 / len(batch)


class MeanOverLength(_Gradient):
    """The loss of a sequence is divided by its length, prompt included."""

    def factor(self, values: Any, batch: list[Any]) -> float:
        return 1 / len(values)


@dataclass
class Overwritten(Fault):
    """Of several gradients before a step, only one counts."""

    pending: bool = False

    def asked(self, call: Call) -> None:
        if call.path == "optim_step":
            self.pending = False
        if call.path == "forward_backward" and not (message := call.proto()).forward_only:
            message.forward_only, self.pending = self.pending, True
            call.body = message.SerializeToString()


class NoThresholds(Fault):
    """Clip thresholds are not read."""

    def asked(self, call: Call) -> None:
        if call.path == "forward_backward":
            message = call.proto()
            message.loss_fn_config.clear()
            message.loss_fn_config_v2.clear()
            if message.loss_fn in ("ppo", "cispo"):
                message.loss_fn_config_v2["clip_high_threshold"].number = 100.0
            call.body = message.SerializeToString()


class OtherLoss(Fault):
    """ppo is importance sampling by another name."""

    def asked(self, call: Call) -> None:
        if call.path == "forward_backward" and (message := call.proto()).loss_fn == "ppo":
            message.loss_fn = "importance_sampling"
            message.loss_fn_config.clear()
            message.loss_fn_config_v2.clear()
            call.body = message.SerializeToString()


class NoLossSum(Fault):
    """loss:sum has another name."""

    def result(self, call: Call, kind: str) -> None:
        if kind == "forward_backward" and call.status == 200 and not call.answer.startswith(b"{"):
            message = pb.ForwardBackwardOutput()
            message.ParseFromString(call.answer)
            message.metrics["total_loss:sum"] = message.metrics.pop("loss:sum")
            call.answer = message.SerializeToString()


class ForgottenOptimizer(Fault):
    """A state comes back without its optimizer."""

    def asked(self, call: Call) -> None:
        if call.path == "load_weights":
            call.body = json.dumps({**call.json, "optimizer": False}).encode()


@dataclass
class StaleSampler(Fault):
    """Every sampler has the weights of the first one."""

    first: dict[str, bytes] = field(default_factory=dict)

    def result(self, call: Call, kind: str) -> None:
        if kind == "save_weights_for_sampler" and call.status == 200 and b"try_again" not in call.answer:
            found = json.loads(call.answer)
            if found.get("sampling_session_id"):
                call.answer = self.first.setdefault("session", call.answer)


class Sampling(Fault):
    """Alters how is sampled."""

    def __init__(self, **params: Any) -> None:
        super().__init__()
        self._params = params

    def asked(self, call: Call) -> None:
        if call.path == "asample":
            body = call.json
            params = {k: v(len(call.body) + id(call)) if callable(v) else v for k, v in self._params.items()}
            call.body = json.dumps({**body, "sampling_params": {**body["sampling_params"], **params}}).encode()


class Copies(Fault):
    """All samples of a request are its first one."""

    def result(self, call: Call, kind: str) -> None:
        if kind == "asample" and call.status == 200 and not call.answer.startswith(b"{"):
            message = pb.SampleResponse()
            message.ParseFromString(call.answer)
            for sequence in message.sequences[1:]:
                sequence.CopyFrom(message.sequences[0])
            call.answer = message.SerializeToString()


class ShortLogprobs(Fault):
    """The log-probabilities of a prompt lack the first token's place."""

    def result(self, call: Call, kind: str) -> None:
        if kind == "asample" and call.status == 200 and not call.answer.startswith(b"{"):
            message = pb.SampleResponse()
            message.ParseFromString(call.answer)
            message.prompt_logprobs = message.prompt_logprobs[4:]
            call.answer = message.SerializeToString()


class NoFinish(Fault):
    """Sessions cannot be ended."""

    def answered(self, call: Call) -> None:
        if call.path.endswith("/finish"):
            call.status, call.answer = 404, b'{"detail":"Not Found"}'


@dataclass
class Lost(Fault):
    """The results of one kind of request are gone, `times` times."""

    kind: str = ""
    times: int = 1_000_000

    def result(self, call: Call, kind: str) -> None:
        if kind == self.kind and self.times > 0:
            self.times -= 1
            call.status, call.answer = 404, b'{"detail":"Future not found"}'


@dataclass
class Storm(Fault):
    """The first answers to each kind of request are errors, after the server has done what was asked; they have the
    `statuses` in turn."""

    statuses: tuple[int, ...] = (500, 500)
    seen: dict[str, int] = field(default_factory=dict)

    def place(self, call: Call) -> int:
        """How many of the kind came before this answer; a large number for kinds without errors."""
        if call.path not in ("forward_backward", "optim_step", "asample", "retrieve_future", "save_weights"):
            return 1_000_000
        self.seen[call.path] = self.seen.get(call.path, 0) + 1
        return self.seen[call.path] - 1

    def answered(self, call: Call) -> None:
        place = self.place(call)
        if place < len(self.statuses):
            call.status, call.answer = self.statuses[place], b'{"detail":"storm"}'


class Resets(Storm):
    """The connection breaks in the middle of the first answer to each kind of request."""

    def answered(self, call: Call) -> None:
        pass

    def cut(self, call: Call) -> bool:
        return self.place(call) == 0


@dataclass
class Disorder(Fault):
    """Requests arrive twice at once, and again before later ones of other kinds; and every answer is slow."""

    repeated: int = 0
    before: dict[str, Call] = field(default_factory=dict)

    async def held(self, call: Call, kind: str) -> None:
        await asyncio.sleep(0.005)

    def again(self, call: Call) -> Sequence[Call]:
        if call.path not in ("forward_backward", "optim_step", "asample", "save_weights", "save_weights_for_sampler"):
            return ()
        late = [other for kind, other in self.before.items() if kind != call.path]
        self.before[call.path] = call
        self.repeated += 1 + len(late)
        return [call, *late]


@dataclass
class Late(Fault):
    """The first result of a kind comes after this time."""

    kind: str = ""
    seconds: float = 0.0
    times: int = 1

    async def held(self, call: Call, kind: str) -> None:
        if kind == self.kind and self.times > 0:
            self.times -= 1
            await asyncio.sleep(self.seconds)


class Echo(Fault):
    """Samples are refused, in words that repeat what was sent."""

    def __init__(self, said: str) -> None:
        super().__init__()
        self._said = said

    def answered(self, call: Call) -> None:
        if call.path == "asample":
            call.status, call.answer = 403, json.dumps({"detail": f"{self._said} may not"}).encode()


@dataclass
class OldProtocol(Fault):
    """A server from before Protobuf: it fails on training requests, and `status` is what it says."""

    status: int = 500

    def answered(self, call: Call) -> None:
        if call.path == "forward_backward":
            call.status, call.answer = self.status, b"Internal Server Error"
