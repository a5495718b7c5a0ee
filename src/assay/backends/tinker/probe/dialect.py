"""Point a: whether a server understands training requests as this SDK sends them.

The SDK repeats a request that a server fails on for five minutes, and each later point would wait as long. So one is
sent here without the SDK.
"""

from __future__ import annotations

import asyncio

import numpy as np
import tinker
from tinker.proto import tinker_public_pb2 as pb

from assay.backends.tinker.probe.finding import Finding, judged
from assay.backends.tinker.service import Service

MODEL = "assay-probe:train:0"
"""Belongs to no session: whoever understands the request refuses it."""
TRIES, PAUSE_S = 3, 1.0
"""A server that fails may be busy."""
STRANGE = (415, 422)
"""HTTP status of a request whose form is not known."""


def unknown_model_request() -> bytes:
    """A request to train on one token, for a model that no server has."""
    message = pb.ForwardBackwardRequest(model_id=MODEL, seq_id=1, loss_fn="cross_entropy", forward_only=True)
    datum = message.data.add()
    datum.model_input.add().encoded_text.tokens = np.zeros(1, np.int32).tobytes()
    for name, values, dtype in (
        ("target_tokens", np.zeros(1, np.int64), pb.DTYPE_INT64),
        ("weights", np.ones(1, np.float32), pb.DTYPE_FLOAT32),
    ):
        tensor = datum.loss_fn_inputs[name]
        tensor.dense, tensor.dtype = values.tobytes(), dtype
        tensor.shape.append(1)
    data: bytes = message.SerializeToString()
    return data


async def look_at_dialect(service: Service) -> list[Finding]:
    """Point a: what a server says to a training request in Protobuf."""
    body, status = unknown_model_request(), 0
    for turn in range(TRIES):
        await asyncio.sleep(PAUSE_S if turn else 0)
        status = await service.status_of_post("forward_backward", body, "application/x-protobuf")
        if status < 500:
            break
    form = f"Protobuf, as SDK {tinker.__version__} sends it"
    ok = status < 500 and status not in STRANGE
    return [
        judged(
            "a",
            "training requests are understood",
            ok,
            form if ok else f"HTTP {status} to one in {form}; before 0.25 the SDK sent JSON",
            "have the server's keeper update it to one for this SDK; nothing can be trained here, so points c to i "
            "were not tried",
        )
    ]
