"""Settings of a training server."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import chz

from assay.backends.config import LocalBackend
from assay.config import Above, AtLeast, AtMost, Settings, refuse, resolved
from assay.errors import ConfigError, ModelError
from assay.storage.files import Home

KEY_VARIABLE = "ASSAY_SERVE_KEY"
"""Where the keys that clients may use stand, separated by spaces or commas."""
SHORTEST_KEY = 20
"""Characters of a key that guards more than this machine, the SDK's `tml-` included."""
IDLE_LOCAL = ("lora_targets", "cohort_tokens", "compile", "cuda_graphs")
"""Settings of the local backend that the server does not use."""
STATE = Home(
    "The server",
    "state_path",
    "have clients save again. Or stop the server, move the folder to a larger disk and set state_path to its new place",
)


@chz.chz
class ServeConfig(Settings):
    """What a training server serves, where it listens, and how much it takes on."""

    model: str | None = None
    """Folder of a Hugging Face causal LM and its tokenizer, or a hub id. `--model` sets it."""
    name: str | None = None
    """Name by which clients ask for the model, such as Qwen/Qwen3-8B; null takes `model` as it is written."""
    state_path: str = "serve"
    """Folder for checkpoints and what else outlives the server. One server at a time uses it."""
    host: str = "127.0.0.1"
    """Address to listen at. Any but a loopback address needs a key."""
    port: Annotated[int, AtLeast(0), AtMost(65535)] = 8178
    """Port to listen at; 0 for a free one."""
    max_lora_rank: Annotated[int, AtLeast(1), AtMost(4096)] = 128
    """Largest rank of an adapter."""
    max_models: Annotated[int, AtLeast(1), AtMost(100_000)] = 64
    """Adapters in training at a time, of all clients together; each holds its weights, gradients and optimizer."""
    max_sessions: Annotated[int, AtLeast(1), AtMost(100_000)] = 256
    """Sessions of clients that are open at a time."""
    max_samplers: Annotated[int, AtLeast(1), AtMost(100_000)] = 16
    """Weights that a session keeps in memory for sampling; beyond, those that were unused for longest go."""
    max_requests: Annotated[int, AtLeast(1), AtMost(1_000_000)] = 16384
    """Requests that wait or are worked on at a time; further ones are told to come again later (429)."""
    max_body_mb: Annotated[int, AtLeast(1), AtMost(4096)] = 64
    """Largest body of a request, in MB. The SDK cuts training data into requests of 5 MB."""
    max_batch_tokens: Annotated[int, AtLeast(1)] = 4_194_304
    """Most tokens of one training request, or of the samples of one sampling request."""
    session_idle_s: Annotated[float, Above(0)] = 3600.0
    """Seconds without a sign of life after which a session is closed and its adapters leave memory, where its client
    never sent a heartbeat."""
    heartbeat_timeout_s: Annotated[float, AtLeast(60)] = 300.0
    """Seconds without a heartbeat or a request after which a session whose client sends heartbeats is closed too. The
    SDK sends one every 10 seconds. While an adapter is worked on, its session stays."""
    result_s: Annotated[float, AtLeast(300)] = 3600.0
    """Seconds for which a result that nobody fetched is kept; one that was fetched is kept for 300 more."""
    max_results_mb: Annotated[int, AtLeast(1), AtMost(1_000_000)] = 2048
    """Results that are kept, in MB. Beyond, fetched ones go early, and new requests are told to come again later (429)
    while the rest is too much."""
    missing_s: Annotated[float, Above(0)] = 600.0
    """Seconds that requests of an adapter wait for an earlier one that has not arrived, before they fail."""
    stop_s: Annotated[float, AtLeast(0)] = 30.0
    """Seconds that work under way has to end when the server is told to stop."""
    local: LocalBackend = chz.field(default_factory=LocalBackend)
    """How the model computes."""

    @chz.validate
    def _a_server(self) -> None:
        refuse(_impossible(self))


def _impossible(config: ServeConfig) -> Iterator[str]:
    try:
        ipaddress.ip_address(config.host)
    except ValueError:
        yield f"host={config.host!r} is not an IP address. Give one, such as 127.0.0.1 or 0.0.0.0."
    own, default = resolved(config.local), resolved(LocalBackend())
    for name in IDLE_LOCAL:
        if own[name] != default[name]:
            yield f"local.{name} would have no effect: the server does not use it. Remove it."


def require_keys(config: ServeConfig, keys: frozenset[str]) -> None:
    """Refuse to serve other machines without a key, and keys that the SDK would not send.

    Raises:
        ConfigError: there is none where one is needed, or one that can be guessed or not be used.
    """
    loopback = ipaddress.ip_address(config.host).is_loopback
    if not keys and not loopback:
        raise ConfigError(
            f"host={config.host} can be reached from other machines, and {KEY_VARIABLE} is not set: anyone could train "
            f"and read checkpoints here. Export {KEY_VARIABLE}=tml-... with a long random key, or listen at 127.0.0.1."
        )
    for key in keys:
        if not key.startswith("tml-"):
            raise ConfigError(
                f"A key in {KEY_VARIABLE} does not begin with tml-, and the SDK sends no other. Put tml- before it."
            )
        if len(key) < SHORTEST_KEY and not loopback:
            raise ConfigError(
                f"A key in {KEY_VARIABLE} has {len(key)} characters, and one that others could try needs at least "
                f'{SHORTEST_KEY}. Export a longer one, such as "tml-$(openssl rand -hex 32)".'
            )


def require_model(config: ServeConfig) -> None:
    """Refuse to serve no model, or a folder that holds none, without loading anything.

    Raises:
        ConfigError: none is named.  ModelError: what is written as a folder is not one, or holds no model.
    """
    if config.model is None:
        raise ConfigError("No model to serve. Name one: assay serve --model DIR_OR_ID.")
    folder = Path(config.model).expanduser()
    is_folder = folder.is_dir() or folder.is_absolute() or config.model.startswith((".", "~"))
    if is_folder and not (folder / "config.json").is_file():
        raise ModelError(
            f"--model {config.model} is not a folder with a config.json. Give one with a Hugging Face causal LM and "
            "its tokenizer, or a hub id."
        )
