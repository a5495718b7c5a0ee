"""The part of a Modal sandbox that speaks to Modal: look-up of the app, one starmap per batch, and what errors mean.

Modal's client unpickles what a container sends, exceptions included, so a candidate that broke out into its container
could run code here, next to the model's weights. The client that this module opens for itself is therefore bound to
unpickle no name at all (plain bytes need none), and that is tried out before it is used. Other clients of the process
are left as they are. What remains in a container's hands: its own answer, and the text of its errors.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import pickle
from collections.abc import AsyncGenerator, Sequence
from typing import Any, cast
from weakref import WeakSet

import modal
from grpclib.exceptions import GRPCError, StreamTerminatedError
from modal import _serialization
from modal import exception as errors
from modal._utils.async_utils import synchronizer
from modal.config import config as settings

from assay.errors import SandboxError
from assay.sandbox.modal.config import BatchLost, Lost, ModalConfig

CLASS_NAME = "KernelContainer"
"""Name of the deployed class; its method is `run`."""
GRACE_S = 60
"""What Modal grants an input beyond `modal_timeout`: the sandbox inside the container is to end a job first, with all
that it knows about it."""
DEPLOY = "modal deploy -m assay.sandbox.modal.app"

_REFUSED = (
    errors.AuthError,
    errors.PermissionDeniedError,
    errors.NotFoundError,
    errors.VersionError,
    errors.UnimplementedError,
    errors.InvalidError,
)
"""Errors that will meet every further job, too."""
_TEXT_CHARS = 2000

_bound: WeakSet[Any] = WeakSet()
"""Clients that may unpickle no names."""
_any_class = pickle.Unpickler.find_class


class ModalRemote:
    """A deployed app. Nothing is looked up before the first batch."""

    def __init__(self, config: ModalConfig) -> None:
        self._config = config
        self._client: modal.Client | None = None
        self._opening = asyncio.Lock()
        self._methods: dict[str, Any] = {}

    async def answers(self, harness: str, payloads: Sequence[bytes]) -> AsyncGenerator[object, None]:
        """See `assay.sandbox.modal.sandbox.Remote`."""
        try:
            method = await self._method(harness)
            inputs = [(payload,) for payload in payloads]
            stream = method.starmap.aio(inputs, order_outputs=False, return_exceptions=True)
            async with contextlib.aclosing(stream):
                async for answer in stream:
                    yield of_one(answer, self._config) if isinstance(answer, BaseException) else answer
        except (errors.Error, GRPCError, StreamTerminatedError, OSError) as error:
            raise BatchLost(classify(error, self._config)) from error

    async def close(self) -> None:
        """Close the client. Safe to call twice."""
        client, self._client = self._client, None
        self._methods.clear()
        if client is not None:
            await client.close.aio()

    async def _method(self, harness: str) -> Any:
        """The deployed method, with this GPU and time limit, in containers that are warm for this harness."""
        if harness not in self._methods:
            async with self._opening:  # held for one connection, never while a job runs
                self._client = self._client or await open_client()
            cls = modal.Cls.from_name(
                self._config.modal_app_name,
                CLASS_NAME,
                environment_name=self._config.modal_environment or None,
                client=self._client,
            ).with_options(
                gpu=self._config.modal_gpu_type,
                timeout=math.ceil(self._config.modal_timeout) + GRACE_S,
                max_containers=self._config.modal_max_containers,
                buffer_containers=self._config.modal_buffer_containers or None,
            )
            self._methods[harness] = cls(harness=harness, walls=self._config.modal_walls).run
        return self._methods[harness]


async def open_client() -> modal.Client:
    """A client of our own, which unpickles no names.

    Raises:
        SandboxError: there are no credentials, or this version of modal cannot be bound so.
    """
    token_id, token_secret = settings.get("token_id"), settings.get("token_secret")
    if not (token_id and token_secret):
        missing = " and ".join(
            name for name, value in (("MODAL_TOKEN_ID", token_id), ("MODAL_TOKEN_SECRET", token_secret)) if not value
        )
        raise SandboxError(
            f"Modal cannot be asked to run anything without credentials: {missing} not set, and no profile in "
            "~/.modal.toml has a token. Run `modal token new`, or set both variables."
        )
    client = await modal.Client.from_credentials.aio(token_id, token_secret)
    bind(client)
    return client


def bind(client: modal.Client) -> None:
    """Forbid a client to unpickle anything that names a class or function.

    Raises:
        SandboxError: it could still do so afterwards.
    """
    inner = cast(Any, synchronizer)._translate_in(client)  # what Modal's own code sees of the client
    cast(Any, _serialization.Unpickler).find_class = _find_class
    _bound.add(inner)
    try:
        _serialization.deserialize(b"cbuiltins\nlen\n.", inner)
    except errors.DeserializationError:
        return
    raise SandboxError(
        f"modal {modal.__version__} reads results in a way that this version of Assay does not know, so that a hostile "
        "container could run code in this process. Install a version of modal that constraints.txt names."
    )


def _find_class(self: Any, module: str, name: str) -> Any:
    """What the SDK's unpickler asks for every name that it meets."""
    if self.client in _bound:
        raise pickle.UnpicklingError(f"a container sent a pickle that names {module}.{name}")
    return _any_class(self, module, name)


def classify(error: BaseException, config: ModalConfig) -> Lost:
    """What an error of Modal's says about the input, or the batch, that met it."""
    text = f"{type(error).__name__}: {error}"[:_TEXT_CHARS]
    if isinstance(error, errors.FunctionTimeoutError):
        return Lost("timeout", f"killed by Modal {GRACE_S} s after modal_timeout={config.modal_timeout:g} s ({text})")
    if isinstance(error, errors.ConflictError) or not isinstance(error, _REFUSED):
        return Lost("infra", f"lost at Modal ({text})")
    return Lost("refused", f"Modal refuses every job ({text}). {_cure(error, config)}")


def of_one(error: BaseException, config: ModalConfig) -> Lost:
    """What an error in place of one answer says; no single input can say that every job is refused."""
    lost = classify(error, config)
    return Lost("infra", lost.text) if lost.kind == "refused" else lost


def _cure(error: BaseException, config: ModalConfig) -> str:
    if isinstance(error, errors.AuthError | errors.PermissionDeniedError):
        return (
            "Check MODAL_TOKEN_ID and MODAL_TOKEN_SECRET, or run `modal token new`; the token must fit the workspace."
        )
    if isinstance(error, errors.NotFoundError):
        where = f" --env {config.modal_environment}" if config.modal_environment else ""
        return f"Deploy the app: `{DEPLOY} --name {config.modal_app_name}{where}`."
    if isinstance(error, errors.VersionError):
        return "Install a newer modal: `pip install --upgrade modal`."
    return (
        f"Check modal_gpu_type={config.modal_gpu_type} and the other modal_ settings, and deploy the app again after "
        f"an upgrade of Assay: `{DEPLOY}`."
    )
