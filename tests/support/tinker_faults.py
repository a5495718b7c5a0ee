"""Faults between the SDK and a server that is right."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tinker.proto import tinker_public_pb2 as pb

from support.tinker_proxy import Call, Fault


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


class NoLowThreshold(Fault):
    """The lower clip threshold is not read."""

    def asked(self, call: Call) -> None:
        if call.path == "forward_backward" and (message := call.proto()).loss_fn == "ppo":
            message.loss_fn_config_v2["clip_low_threshold"].number = 0.0
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

    optimizer = False

    def asked(self, call: Call) -> None:
        if call.path == "load_weights":
            call.body = json.dumps({**call.json, "optimizer": self.optimizer}).encode()


class KeptOptimizer(ForgottenOptimizer):
    """A state always comes back with its optimizer."""

    optimizer = True


@dataclass
class NoBase(Fault):
    """The base model's sampler has the weights that were last saved for a sampler."""

    path: str = ""

    def asked(self, call: Call) -> None:
        if call.path == "create_sampling_session" and self.path and call.json.get("base_model"):
            call.body = json.dumps({**call.json, "base_model": None, "model_path": self.path}).encode()

    def result(self, call: Call, kind: str) -> None:
        if kind == "save_weights_for_sampler" and call.status == 200 and b"tinker://" in call.answer:
            self.path = json.loads(call.answer)["path"]


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
    """The first two answers to each kind of request are errors, after the server has done its work.

    What comes to all kinds in turn are the `statuses`.
    """

    statuses: tuple[int, ...] = (500, 408, 429)
    given: int = 0
    seen: dict[str, int] = field(default_factory=dict)

    def place(self, call: Call) -> int:
        """How many of the kind came before this answer; a large number for kinds without errors."""
        if call.path not in ("forward_backward", "optim_step", "asample", "retrieve_future", "save_weights"):
            return 1_000_000
        self.seen[call.path] = self.seen.get(call.path, 0) + 1
        return self.seen[call.path] - 1

    def answered(self, call: Call) -> None:
        if self.place(call) < 2:
            call.status, call.answer = self.statuses[self.given % len(self.statuses)], b'{"detail":"storm"}'
            self.given += 1


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
