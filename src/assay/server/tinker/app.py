"""The addresses of the protocol, and who may use them.

An answer that says no has a JSON body `{"error", "category"}`. No answer and no log line holds a key, a prompt or a
sample. What a handler raises beyond that is logged, and the client is told that the server failed.
"""

from __future__ import annotations

import asyncio
import hmac
import inspect
import ipaddress
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from tinker import types

from assay.server.tinker import listing, sampling_calls, training_calls, wire
from assay.server.tinker.checkpoints import stamp
from assay.server.tinker.desk import Desk, owner_of
from assay.server.tinker.errors import RequestError, bad, failure
from assay.types import Json

API = "/api/v1"
BODY_S = 60
"""Seconds in which the body of a request has to arrive."""
Answer = Mapping[str, Json] | Response
Answering = Awaitable[Mapping[str, Json]] | Mapping[str, Json]
PostHandler = Callable[[Desk, str, bytes], Any]

POSTS: Mapping[str, PostHandler] = {
    "create_session": listing.create_session,
    "session_heartbeat": listing.heartbeat,
    "create_model": training_calls.create_model,
    "load_weights": training_calls.load_weights,
    "get_info": training_calls.get_info,
    "forward_backward": training_calls.forward_backward,
    "optim_step": training_calls.optim_step,
    "save_weights": training_calls.save_weights,
    "save_weights_for_sampler": training_calls.save_weights_for_sampler,
    "unload_model": training_calls.unload_model,
    "create_sampling_session": sampling_calls.create_sampling_session,
    "join_sampling_session": sampling_calls.join_sampling_session,
    "asample": sampling_calls.sample,
    "cancel_future": sampling_calls.cancel,
    "weights_info": listing.weights_info,
}
"""Address below `API` -> what takes (desk, owner, body) and gives the answer."""

NOT_SERVED: Mapping[str, str] = {
    "save_weights_external": "Save with save_state, and download the archive: it is in peft's format.",
    "copy_weights": "Load the checkpoint into a new client (create_training_client_from_state), and save that.",
    "create_custom_loss": "Use forward_backward_custom with a function, which runs at the client.",
    "retrieve_futures": "This server did not ask for it (sample_use_retrieve_futures).",
    "auth/token": "This server takes API keys alone.",
    "sessions/search": "List sessions in place of it.",
}
"""Addresses of the hosted service that are refused, and what to do."""

CLIENT_CONFIG: Mapping[str, Json] = {"pjwt_auth_enabled": False, "proto_compress_fwdbwd": False}


class App:
    """The ASGI application over a desk."""

    def __init__(self, desk: Desk, keys: frozenset[str], port: int) -> None:
        """`keys` are those that clients may use; none takes any, and answers to the server's own address alone."""
        self._desk = desk
        self._keys = [key.encode() for key in keys]
        self._names = own_names(desk.config.host, port)
        self.requests = 0
        self.asgi = Starlette(routes=self._routes(), exception_handlers={HTTPException: _unknown})

    def _routes(self) -> list[Route]:
        checkpoint = f"{API}/training_runs/{{run}}/checkpoints/{{kind}}/{{name}}"
        routes = [self._route("POST", f"{API}/{name}", partial(_posted, post)) for name, post in POSTS.items()]
        routes += [
            self._route("POST", f"{API}/{name}", partial(_not_served, cure)) for name, cure in NOT_SERVED.items()
        ]
        table: list[tuple[str, str, Callable[..., Any]]] = [
            ("POST", f"{API}/client/config", self._client_config),
            ("POST", f"{API}/client/dynamic_config", self._dynamic_config),
            ("POST", f"{API}/telemetry", self._telemetry),
            ("POST", f"{API}/retrieve_future", self._retrieve),
            ("GET", f"{API}/get_server_capabilities", lambda owner, request, body: listing.capabilities(self._desk)),
            ("GET", f"{API}/sessions", self._query(listing.list_sessions)),
            ("GET", f"{API}/sessions/{{session}}", self._named(listing.get_session, "session")),
            ("POST", f"{API}/sessions/{{session}}/finish", self._finish),
            ("GET", f"{API}/samplers/{{sampler}}", self._named(sampling_calls.get_sampler, "sampler")),
            ("GET", f"{API}/training_runs", self._query(listing.list_runs)),
            ("GET", f"{API}/training_runs/{{run}}", self._named(listing.get_run, "run")),
            ("GET", f"{API}/training_runs/{{run}}/checkpoints", self._named(listing.list_checkpoints, "run")),
            ("GET", f"{API}/checkpoints", self._query(listing.list_all_checkpoints)),
            ("DELETE", checkpoint, self._delete),
            ("PUT", f"{checkpoint}/ttl", self._ttl),
            ("POST", f"{checkpoint}/publish", self._publish),
            ("DELETE", f"{checkpoint}/publish", self._publish),
            ("GET", f"{checkpoint}/archive", self._archive),
            ("GET", "/metrics", self._metrics),
        ]
        routes += [self._route(method, path, handler) for method, path, handler in table]
        return [Route(f"{API}/healthz", self._health, methods=["GET"]), *routes]

    def _route(self, method: str, path: str, handler: Callable[..., Any]) -> Route:
        async def endpoint(request: Request) -> Response:
            return await self._answer(request, handler)

        return Route(path, endpoint, methods=[method])

    async def _answer(self, request: Request, handler: Callable[..., Any]) -> Response:
        self.requests += 1
        try:
            owner = self._let_in(request)
            body = await self._body(request)
            found = handler(owner, request, body)
            found = await found if inspect.isawaitable(found) else found
            return found if isinstance(found, Response) else JSONResponse(found)
        except ClientDisconnect:
            return Response(status_code=400)
        except RequestError as error:
            return refused(error)
        except Exception as error:  # noqa: BLE001 - of one client's request, who is told
            return refused(failure(error))

    def _let_in(self, request: Request) -> str:
        """The owner of what the request makes or uses.

        Raises:
            RequestError: it may not.
        """
        given = request.headers.get("x-api-key") or request.headers.get("authorization", "").removeprefix("Bearer ")
        if not self._keys:
            if request.headers.get("host", "").lower() not in self._names:
                # A page whose name was made to point here (DNS rebinding) would be one of this machine's users.
                raise RequestError(421, "This server has no key, and answers to its own address only.")
            if "origin" in request.headers:
                # Browsers let any page send requests here, whose answers it cannot read but which take up places.
                raise RequestError(403, "This server has no key, and answers to programs, not to pages in browsers.")
            return owner_of(given)
        found = [key for key in self._keys if hmac.compare_digest(given.encode("utf-8", "replace"), key)]
        if not found:
            raise RequestError(401, "The API key is missing or wrong.")
        return owner_of(given)

    async def _body(self, request: Request) -> bytes:
        most = self._desk.config.max_body_mb * 1_000_000
        if request.headers.get("content-encoding", "identity") != "identity":
            raise RequestError(415, "Bodies are taken as they are, without Content-Encoding.")
        parts, size = [], 0
        try:
            async with asyncio.timeout(BODY_S):
                async for part in request.stream():
                    size += len(part)
                    if size <= most:
                        parts.append(part)
                    else:
                        parts.clear()  # and the rest is read: a client that still sends would see a reset, no answer
        except TimeoutError:
            raise RequestError(408, f"The body did not arrive within {BODY_S} s.") from None
        if size > most:
            raise RequestError(413, f"The body has more than {most // 1_000_000} MB (max_body_mb).")
        return b"".join(parts)

    async def _health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    def _client_config(self, owner: str, request: Request, body: bytes) -> Answer:
        wire.read_json(types.ClientConfigRequest, body)
        return CLIENT_CONFIG

    def _dynamic_config(self, owner: str, request: Request, body: bytes) -> Answer:
        return {"sample_cancel_enabled": True}

    def _telemetry(self, owner: str, request: Request, body: bytes) -> Answer:
        return {"status": "accepted"}  # and dropped

    async def _retrieve(self, owner: str, request: Request, body: bytes) -> Answer:
        request_id = wire.read_object(body).get("request_id")
        if not isinstance(request_id, str):
            raise bad("request_id is missing.")
        found = await self._desk.promises.fetch(owner, request_id)
        if found is None:
            waits: dict[str, Json] = {"type": "try_again", "request_id": request_id, "queue_state": "active"}
            return JSONResponse(waits, 408)
        if isinstance(found, RequestError):
            return JSONResponse(found.body)
        return Response(found.body, media_type=found.kind)

    def _query(self, handler: Callable[[Desk, str, Mapping[str, str]], Answering]) -> Callable[..., Answering]:
        return lambda owner, request, body: handler(self._desk, owner, request.query_params)

    def _named(self, handler: Callable[[Desk, str, str], Answering], what: str) -> Callable[..., Answering]:
        return lambda owner, request, body: handler(self._desk, owner, request.path_params[what])

    def _finish(self, owner: str, request: Request, body: bytes) -> Answer:
        return listing.finish(self._desk, owner, request.path_params["session"], body)

    def _delete(self, owner: str, request: Request, body: bytes) -> Answering:
        return listing.delete_checkpoint(self._desk, owner, _path(request))

    def _ttl(self, owner: str, request: Request, body: bytes) -> Answering:
        return listing.set_ttl(self._desk, owner, _path(request), body)

    def _publish(self, owner: str, request: Request, body: bytes) -> Answering:
        return listing.publish(self._desk, owner, _path(request), request.method == "POST")

    def _archive(self, owner: str, request: Request, body: bytes) -> Answer:
        checkpoint = self._desk.checkpoint(owner, _path(request))
        name = f'attachment; filename="{checkpoint.name}.tar"'
        return StreamingResponse(
            listing.archive(self._desk, checkpoint),
            media_type="application/x-tar",
            headers={"Content-Disposition": name, "Last-Modified": stamp(checkpoint.created)},
        )

    def _metrics(self, owner: str, request: Request, body: bytes) -> Answer:
        desk = self._desk
        values = {
            "sessions": float(len(desk.sessions)),
            "models": float(len(desk.sessions.models)),
            "requests_waiting": float(desk.promises.waiting),
            "http_requests_total": float(self.requests),
            **{f'requests_total{{outcome="{k}"}}': float(v) for k, v in desk.promises.ended.items()},
            **desk.host.load,
        }
        return Response("".join(f"assay_serve_{k} {v:g}\n" for k, v in values.items()), media_type="text/plain")


def _posted(handler: PostHandler, owner: str, request: Request, body: bytes) -> Any:
    desk: Desk = request.app.state.desk
    return handler(desk, owner, body)


def _not_served(cure: str, owner: str, request: Request, body: bytes) -> Answer:
    raise bad(f"{request.url.path.removeprefix(API)} is not served here. {cure}")


async def _unknown(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    return refused(RequestError(status, "There is nothing at this address, or not with this method."))


def _path(request: Request) -> str:
    return listing.path_of(request.path_params["run"], f"{request.path_params['kind']}/{request.path_params['name']}")


def refused(error: RequestError) -> Response:
    """The answer to a request that is refused."""
    headers = {"Retry-After": "2"} if error.status in (429, 503) else {}
    return JSONResponse(error.body, error.status, headers)


def own_names(host: str, port: int) -> frozenset[str]:
    """How a server's own address is written in the header Host."""
    address = f"[{host}]" if ipaddress.ip_address(host).version == 6 else host
    names = (address, "localhost")
    return frozenset((*(f"{name}:{port}" for name in names), *(names if port == 80 else ())))
