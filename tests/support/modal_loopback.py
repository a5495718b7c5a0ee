"""A counterpart of Modal's servers on loopback: the calls that the SDK makes to map inputs over a deployed class.

It speaks the SDK's own protocol buffers through gRPC, so the client under test is the real one down to its sockets.
What containers do is up to the test.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from grpclib import GRPCError, Status
from grpclib.const import Cardinality, Handler
from grpclib.server import Server
from modal_proto import api_pb2
from modal_proto.api_grpc import ModalClientBase

SERVICE = "/modal.client.ModalClient/"

Output = tuple[api_pb2.GenericResult, "api_pb2.DataFormat.ValueType"]
Container = Callable[[bytes], Awaitable[Output]]
"""What a container sends for a payload."""

STRING = api_pb2.PARAM_TYPE_STRING


def success(value: object) -> Output:
    """What Modal's runner in a container sends for a value that a method returned."""
    status = api_pb2.GenericResult.GENERIC_STATUS_SUCCESS
    return api_pb2.GenericResult(status=status, data=pickle.dumps(value, protocol=4)), api_pb2.DATA_FORMAT_PICKLE


def failure(status: Any, text: str = "", data: bytes = b"") -> Output:
    """What Modal sends in place of a value; `data` is a pickled exception."""
    return api_pb2.GenericResult(status=status, exception=text, data=data), api_pb2.DATA_FORMAT_PICKLE


def parameter(name: str) -> api_pb2.ClassParameterSpec:
    kind = api_pb2.GenericPayloadType(base_type=STRING)
    return api_pb2.ClassParameterSpec(name=name, type=STRING, full_type=kind)


class LoopbackModal:
    """One workspace with one deployed app."""

    def __init__(self, app: str, cls: str, method: str, parameters: tuple[str, ...], container: Container) -> None:
        self.app, self.cls, self.method, self.parameters, self.container = app, cls, method, parameters, container
        self.token = ("ak-good", "as-good")
        self.bound: list[api_pb2.FunctionBindParamsRequest] = []
        self.maps: list[int] = []
        """Inputs of each map."""
        self._calls: dict[str, Map] = {}

    def __mapping__(self) -> dict[str, Handler]:
        rpcs = {
            "AuthTokenGet": (self.auth, api_pb2.AuthTokenGetRequest, api_pb2.AuthTokenGetResponse),
            "ClassGet": (self.class_get, api_pb2.ClassGetRequest, api_pb2.ClassGetResponse),
            "FunctionGet": (self.function_get, api_pb2.FunctionGetRequest, api_pb2.FunctionGetResponse),
            "FunctionBindParams": (
                self.bind_params,
                api_pb2.FunctionBindParamsRequest,
                api_pb2.FunctionBindParamsResponse,
            ),
            "FunctionMap": (self.map, api_pb2.FunctionMapRequest, api_pb2.FunctionMapResponse),
            "FunctionPutInputs": (self.put, api_pb2.FunctionPutInputsRequest, api_pb2.FunctionPutInputsResponse),
            "FunctionGetOutputs": (self.get, api_pb2.FunctionGetOutputsRequest, api_pb2.FunctionGetOutputsResponse),
        }
        return {
            SERVICE + name: Handler(self.unary(answer), Cardinality.UNARY_UNARY, request, reply)
            for name, (answer, request, reply) in rpcs.items()
        }

    def unary(self, answer: Callable[[Any], Awaitable[Any]]) -> Callable[[Any], Awaitable[None]]:
        async def handler(stream: Any) -> None:
            given = (stream.metadata.get("x-modal-token-id"), stream.metadata.get("x-modal-token-secret"))
            if given != self.token:
                raise GRPCError(Status.UNAUTHENTICATED, "Token validation failed")
            await stream.send_message(await answer(await stream.recv_message()))

        return handler

    async def auth(self, request: Any) -> Any:
        return api_pb2.AuthTokenGetResponse(token="e30.e30.e30")

    async def class_get(self, request: Any) -> Any:
        if (request.app_name, request.object_tag) != (self.app, self.cls):
            raise GRPCError(Status.NOT_FOUND, f"App {request.app_name!r} not found")
        return api_pb2.ClassGetResponse(class_id="cs-1", handle_metadata=api_pb2.ClassHandleMetadata())

    def handle(self) -> api_pb2.FunctionHandleMetadata:
        kind = api_pb2.Function.FUNCTION_TYPE_FUNCTION
        method = api_pb2.FunctionHandleMetadata(
            function_name=f"{self.cls}.{self.method}", function_type=kind, is_method=True, use_method_name=self.method
        )
        return api_pb2.FunctionHandleMetadata(
            function_name=f"{self.cls}.*",
            function_type=kind,
            method_handle_metadata={self.method: method},
            class_parameter_info=api_pb2.ClassParameterInfo(
                format=api_pb2.ClassParameterInfo.PARAM_SERIALIZATION_FORMAT_PROTO,
                schema=[parameter(name) for name in self.parameters],
            ),
        )

    async def function_get(self, request: Any) -> Any:
        assert (request.app_name, request.object_tag) == (self.app, f"{self.cls}.*")
        deployed = api_pb2.Function(function_name=f"{self.cls}.*", single_use_containers=True)
        data = api_pb2.FunctionData(ranked_functions=[api_pb2.FunctionData.RankedFunction(rank=0, function=deployed)])
        return api_pb2.FunctionGetResponse(function_id="fu-1", handle_metadata=self.handle(), function=data)

    async def bind_params(self, request: Any) -> Any:
        self.bound.append(request)
        return api_pb2.FunctionBindParamsResponse(bound_function_id="fu-2", handle_metadata=self.handle())

    async def map(self, request: Any) -> Any:
        assert (request.function_id, request.return_exceptions) == ("fu-2", True)
        name = f"fc-{len(self.maps)}"
        self.maps.append(0)
        self._calls[name] = Map(name, self.container)
        return api_pb2.FunctionMapResponse(
            function_call_id=name, function_call_jwt="e30.e30.e30", max_inputs_outstanding=1000
        )

    async def put(self, request: Any) -> Any:
        self.maps[int(request.function_call_id.removeprefix("fc-"))] += len(request.inputs)
        return self._calls[request.function_call_id].put(request.inputs)

    async def get(self, request: Any) -> Any:
        return await self._calls[request.function_call_id].get(
            int(request.last_entry_id.split("-")[0]), request.timeout
        )

    async def close(self) -> None:
        tasks = [task for call in self._calls.values() for task in call.tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Map:
    """The inputs of one map, each in a container."""

    def __init__(self, name: str, container: Container) -> None:
        self.name, self.container = name, container
        self.tasks: list[asyncio.Task[None]] = []
        self.outputs: list[api_pb2.FunctionGetOutputsItem] = []
        self.more = asyncio.Condition()

    def put(self, inputs: Any) -> Any:
        for item in inputs:
            self.tasks.append(asyncio.create_task(self.run(item)))
        return api_pb2.FunctionPutInputsResponse(
            inputs=[
                api_pb2.FunctionPutInputsResponseItem(idx=i.idx, input_id=f"in-{i.idx}", input_jwt="e30.e30.e30")
                for i in inputs
            ]
        )

    async def run(self, item: Any) -> None:
        (payload,), kwargs = pickle.loads(item.input.args)
        assert (item.input.method_name, kwargs) == ("run", {})
        result, data_format = await self.container(payload)
        async with self.more:
            self.outputs.append(
                api_pb2.FunctionGetOutputsItem(
                    result=result, idx=item.idx, input_id=f"in-{item.idx}", data_format=data_format
                )
            )
            self.more.notify_all()

    async def get(self, seen: int, timeout: float) -> Any:
        async with self.more:
            try:
                async with asyncio.timeout(timeout):
                    await self.more.wait_for(lambda: len(self.outputs) > seen)
            except TimeoutError:
                pass
            return api_pb2.FunctionGetOutputsResponse(
                outputs=self.outputs[seen:], last_entry_id=f"{len(self.outputs)}-0"
            )


class Unnamed:
    """Has an attribute of every name."""

    def __getattr__(self, name: str) -> None:
        return None


class DeployingModal:
    """A workspace that takes an app apart as it is deployed: it says yes to everything and keeps what it was sent."""

    def __init__(self) -> None:
        self.seen: dict[str, list[Any]] = {}
        made = api_pb2.GenericResult(status=api_pb2.GenericResult.GENERIC_STATUS_SUCCESS)
        builder = "2025.06"
        settings = api_pb2.EnvironmentSettings(image_builder_version=builder)
        self.replies = {
            "AppCreate": api_pb2.AppCreateResponse(app_id="ap-1"),
            "ClientHello": api_pb2.ClientHelloResponse(image_builder_version=builder),
            "EnvironmentGetOrCreate": api_pb2.EnvironmentGetOrCreateResponse(
                environment_id="en-1", metadata=api_pb2.EnvironmentMetadata(name="main", settings=settings)
            ),
            "FunctionPrecreate": api_pb2.FunctionPrecreateResponse(function_id="fu-1"),
            "ImageGetOrCreate": api_pb2.ImageGetOrCreateResponse(
                image_id="im-1", result=made, metadata=api_pb2.ImageMetadata(image_builder_version=builder)
            ),
            "MountGetOrCreate": api_pb2.MountGetOrCreateResponse(mount_id="mo-1"),
            "MountPutFile": api_pb2.MountPutFileResponse(exists=True),
        }

    def __mapping__(self) -> dict[str, Handler]:
        every: dict[str, Handler] = ModalClientBase.__mapping__(Unnamed())  # type: ignore[arg-type]
        return {path: handler._replace(func=self.keep(path, handler)) for path, handler in every.items()}

    def keep(self, path: str, handler: Handler) -> Callable[[Any], Awaitable[None]]:
        name = path.removeprefix(SERVICE)

        async def answer(stream: Any) -> None:
            self.seen.setdefault(name, []).append(await stream.recv_message())
            if name == "FunctionCreate":
                raise GRPCError(Status.FAILED_PRECONDITION, "enough was seen")
            await stream.send_message(self.replies.get(name) or handler.reply_type())

        return answer

    async def close(self) -> None:
        """Nothing runs here."""


@asynccontextmanager
async def serving(modal: LoopbackModal | DeployingModal) -> AsyncIterator[str]:
    """The address of a server for this workspace."""
    server = Server([modal])
    await server.start("127.0.0.1", 0)
    assert server._server is not None
    port = server._server.sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await modal.close()
        server.close()
        await server.wait_closed()
