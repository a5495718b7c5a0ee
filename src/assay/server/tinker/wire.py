"""Messages of the protocol: what clients send becomes plain records, with every number checked, and results bytes.

The messages are those of the official SDK, JSON by its own classes and Protobuf by its own generated ones.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from google.protobuf.message import DecodeError
from pydantic import BaseModel, ValidationError
from tinker.proto import tinker_public_pb2 as pb

from assay.backends.base import ForwardBackwardOutput, LossSpec
from assay.backends.local.adapters.engine import Sampled
from assay.backends.local.adapters.scoring import Scores
from assay.backends.local.adapters.training import WholeDatum
from assay.server.tinker.errors import RequestError, bad
from assay.types import Datum, FloatArray, IntArray, Json

M = TypeVar("M", bound=BaseModel)

RATIO_LOSSES = ("importance_sampling", "ppo", "cispo", "gspo")
THRESHOLDS: Mapping[str, Mapping[str, float]] = {
    "cross_entropy": {},
    "importance_sampling": {},
    "ppo": {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2},
    "cispo": {"clip_low_threshold": 0.0, "clip_high_threshold": 4.0},
}
"""The losses that are served, with the defaults of their settings."""
INPUTS = {"cross_entropy": ("target_tokens", "weights")} | {
    name: ("target_tokens", "logprobs", "advantages") for name in THRESHOLDS if name != "cross_entropy"
}
_NUMPY = {pb.DTYPE_FLOAT32: np.float32, pb.DTYPE_INT64: np.int64, pb.DTYPE_INT32: np.int32}


def read_json(cls: type[M], body: bytes) -> M:
    """A JSON body as one of the SDK's own requests.

    Raises:
        RequestError: it is not one; the message names the fields, and holds nothing of their values.
    """
    try:
        return cls.model_validate_json(body)
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, e['loc'][:4]))}: {e['msg']}" for e in error.errors(include_input=False)[:4]]
        raise bad(f"The body is not a {cls.__name__} of this version of the protocol ({'; '.join(faults)}).") from None
    except RecursionError:
        raise bad("The body is nested too deeply.") from None


def read_object(body: bytes) -> dict[str, Json]:
    """A JSON object.

    Raises:
        RequestError: the body is not one.
    """
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise bad("The body is not JSON.") from None
    if not isinstance(value, dict):
        raise bad("The body is not a JSON object.")
    return value


def read_forward_backward(body: bytes) -> Any:
    """A Protobuf body as a ForwardBackwardRequest.

    Raises:
        RequestError: it is not one.
    """
    message = pb.ForwardBackwardRequest()
    try:
        message.ParseFromString(body)
    except DecodeError:
        raise bad("The body is not a ForwardBackwardRequest of the protocol.") from None
    return message


def loss_of(message: Any) -> LossSpec:
    """The loss that a request asks for, with its settings.

    Raises:
        RequestError: it is not served, or has settings that it does not know.
    """
    name = message.loss_fn
    if name not in THRESHOLDS:
        raise bad(
            f"loss_fn {name[:80]!r} is not served here; {', '.join(THRESHOLDS)} are. Write others with "
            "forward_backward_custom."
        )
    given: dict[str, float] = dict(message.loss_fn_config)
    for key, value in message.loss_fn_config_v2.items():
        if value.WhichOneof("value") != "number":
            raise bad(f"loss_fn_config {key[:80]!r} is a text; {name} takes numbers.")
        given[key] = value.number
    unknown = given.keys() - THRESHOLDS[name].keys()
    if unknown:
        known = ", ".join(THRESHOLDS[name]) or "nothing"
        raise bad(f"loss_fn_config {min(unknown)[:80]!r} would have no effect: {name} takes {known}.")
    if not all(math.isfinite(v) and v >= 0 for v in given.values()):
        raise bad("loss_fn_config holds a number that is negative or not finite; thresholds are ratios.")
    return LossSpec(name, config={**THRESHOLDS[name], **given})


def data_of(message: Any, loss: LossSpec, *, context: int, vocabulary: int, most_tokens: int) -> list[Datum]:
    """The training data of a request.

    Raises:
        RequestError: they cannot be trained on; the message names the datum.
    """
    if not message.data:
        raise bad("The request has no data.")
    found: list[Datum] = []
    total = 0
    for place, datum in enumerate(message.data):
        try:
            tokens = _tokens(datum.model_input, vocabulary)
            if len(tokens) > context:
                raise bad(f"{len(tokens)} tokens, and the model's context is {context}. Cut it")
            total += len(tokens)
            if total > most_tokens:
                raise bad(f"the request has more than {most_tokens} tokens (max_batch_tokens). Send less at a time")
            found.append(_datum(tokens, datum.loss_fn_inputs, loss.name, vocabulary))
        except RequestError as error:
            raise RequestError(error.status, f"data[{place}]: {error}.", error.category) from None
    return found


def _tokens(chunks: Sequence[Any], vocabulary: int) -> IntArray:
    parts = []
    for chunk in chunks:
        if chunk.WhichOneof("chunk") != "encoded_text":
            raise bad("model_input has a chunk that is not text, and the model takes text alone")
        parts.append(_array(chunk.encoded_text.tokens, np.int32))
    tokens = np.concatenate(parts).astype(np.int64) if parts else np.zeros(0, np.int64)
    return _known(tokens, vocabulary, "model_input")


def _known(tokens: IntArray, vocabulary: int, what: str) -> IntArray:
    if not len(tokens):
        raise bad(f"{what} is empty")
    if int(tokens.min()) < 0 or int(tokens.max()) >= vocabulary:
        raise bad(f"{what} has a token that the model does not know; it knows 0 to {vocabulary - 1}")
    return tokens


def _datum(tokens: IntArray, inputs: Mapping[str, Any], loss: str, vocabulary: int) -> Datum:
    wanted = INPUTS[loss]
    if set(inputs) != set(wanted):
        extra, lacking = sorted(set(inputs) - set(wanted)), sorted(set(wanted) - set(inputs))
        said = [*(f"{n[:80]!r} would have no effect" for n in extra[:2]), *(f"{n!r} is missing" for n in lacking)]
        raise bad(f"loss_fn_inputs: {', '.join(said)}; {loss} takes {', '.join(wanted)}")
    columns = {name: _column(inputs[name], name, len(tokens)) for name in wanted}
    targets = _known(columns["target_tokens"].astype(np.int64), vocabulary, "target_tokens")
    factors = columns["weights" if loss == "cross_entropy" else "advantages"].astype(np.float32)
    logprobs = columns["logprobs"].astype(np.float32) if "logprobs" in columns else np.zeros(len(tokens), np.float32)
    trained = np.flatnonzero(factors)
    prompt = int(trained[0]) if len(trained) else 0
    return WholeDatum(tokens, targets, logprobs, factors, np.ones(len(tokens), np.float32), prompt=prompt)


def _column(tensor: Any, name: str, length: int) -> Any:
    if tensor.HasField("sparse_csr"):
        raise bad(f"{name} is sparse; several targets for a position are not served. Send one for each")
    if len(tensor.shape) > 1:
        raise bad(f"{name} has {len(tensor.shape)} dimensions; several targets for a position are not served")
    if tensor.dtype not in _NUMPY:
        raise bad(f"{name} has an unknown dtype")
    values = _array(tensor.dense, _NUMPY[tensor.dtype])
    if len(values) != length:
        raise bad(f"{name} has {len(values)} values for {length} tokens")
    if name == "target_tokens" and values.dtype.kind != "i":
        raise bad("target_tokens must be int64")
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise bad(f"{name} has values that are not finite")
    return values


def _array(data: bytes, dtype: Any) -> Any:
    if len(data) % np.dtype(dtype).itemsize:
        raise bad("a tensor's bytes are no whole number of values")
    return np.frombuffer(data, dtype)


def prompt_of(chunks: Sequence[Any], *, context: int, vocabulary: int) -> tuple[int, ...]:
    """The prompt of a request to sample.

    Raises:
        RequestError: it is empty, too long, not text, or has tokens that the model does not know.
    """
    tokens: list[int] = []
    for chunk in chunks:
        if getattr(chunk, "tokens", None) is None:
            raise bad("The prompt has a chunk that is not text, and the model takes text alone.")
        tokens += chunk.tokens
    if not tokens:
        raise bad("The prompt is empty; give at least one token.")
    if len(tokens) > context:
        raise bad(f"The prompt has {len(tokens)} tokens and the model's context is {context}. Shorten it.")
    if min(tokens) < 0 or max(tokens) >= vocabulary:
        raise bad(f"The prompt has a token that the model does not know; it knows 0 to {vocabulary - 1}.")
    return tuple(tokens)


def forward_backward_output(output: ForwardBackwardOutput) -> bytes:
    """The result of a training request."""
    message = pb.ForwardBackwardOutput(loss_fn_output_type="ArrayRecord")
    record = message.loss_fn_outputs.add(num_datums=len(output.logprobs))
    sizes = [values.nbytes for values in output.logprobs]
    record.fields["logprobs"].data = b"".join(v.astype(np.float32).tobytes() for v in output.logprobs)
    record.fields["logprobs"].offsets = np.cumsum([0, *sizes]).astype(np.int64).tobytes()  # in bytes
    record.fields["logprobs"].dtype = pb.DTYPE_FLOAT32
    for name in ("loss:sum", "entropy:mean"):
        message.metrics[name] = output.metrics[name]
    data: bytes = message.SerializeToString()
    return data


def sample_response(samples: Sequence[Sampled], length: int, first: int, scores: Scores | None, own: bool) -> bytes:
    """The result of a request to sample.

    Args:
        length: tokens of the prompt.
        first: the first position of the prompt that was scored.
        own: whether the log-probabilities of the prompt's own tokens were asked for.
    """
    message = pb.SampleResponse()
    for sample in samples:
        sequence = message.sequences.add(
            stop_reason=pb.STOP_REASON_STOP if sample.stop_reason == "stop" else pb.STOP_REASON_LENGTH,
            tokens=np.array(sample.tokens, np.int32).tobytes(),
            logprobs=np.array(sample.logprobs, np.float32).tobytes(),
        )
        if sample.call.top:
            _table(sequence.topk_sampled_logprobs, np.stack(sample.top_ids), np.stack(sample.top_logprobs), 0)
    if scores is not None:
        if own:
            whole = np.full(length, np.nan, np.float32)
            whole[first:] = scores.own
            message.prompt_logprobs = whole.tobytes()
        if scores.top_ids is not None and scores.top_logprobs is not None:
            _table(message.topk_prompt_logprobs, scores.top_ids, scores.top_logprobs, first)
        if scores.targets is not None:
            _tensor(message.target_prompt_logprobs, scores.targets)
        if scores.draws is not None and scores.draw_logprobs is not None:
            _tensor(message.prompt_alt_tokens.tokens, scores.draws.astype(np.int32))
            _tensor(message.prompt_alt_tokens.logprobs, scores.draw_logprobs)
    data: bytes = message.SerializeToString()
    return data


def _table(message: Any, ids: IntArray, logprobs: FloatArray, empty_rows: int) -> None:
    """A table of the likeliest tokens; rows before those that were scored are empty."""
    rows, k = ids.shape
    blank = (empty_rows, k)
    message.token_ids = np.concatenate([np.zeros(blank), ids]).astype(np.int32).tobytes()
    message.logprobs = np.concatenate([np.full(blank, -99999.0), logprobs]).astype(np.float32).tobytes()
    message.k, message.length = k, rows + empty_rows


def _tensor(message: Any, values: Any) -> None:
    message.dense = np.ascontiguousarray(values).tobytes()
    message.dtype = pb.DTYPE_FLOAT32 if values.dtype == np.float32 else pb.DTYPE_INT32
    message.shape.extend(values.shape)
