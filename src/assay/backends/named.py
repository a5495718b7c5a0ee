"""Resolves the setting `backend`, and opens the policy.

    local           a PyTorch model on this machine (`backends/local`)
    tinker          a model behind the Tinker API (`backends/tinker`)
    mine.py:open    one of your own: `async def open(policy, data, resume) -> Backend`

Imports no torch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from assay.backends.base import Backend, Tokenizer
from assay.backends.config import PolicySpec
from assay.config import refuse
from assay.config.urls import kept_secrets
from assay.envs.base import EnvData
from assay.errors import ConfigError
from assay.plugins import Kind, find, signature

Opener = Callable[[PolicySpec, EnvData, Path | None], Coroutine[Any, Any, Backend]]
"""`async (policy, data, resume) -> Backend`. `resume` is the folder that the backend's `save_state` wrote, to go
on from exactly there; None is a new run, which begins with the weights of the folder `policy.start` where that is set.
"""

BACKEND = Kind(
    "backend",
    {"local": "assay.backends.local.backend:open_backend", "tinker": "assay.backends.tinker.backend:open_backend"},
    inspect.isroutine,
)
"""What `backend` may name."""


def canonical(backend: Any) -> Any:
    """The reference as a config keeps it, files by their absolute path; anything but text stays as it is."""
    return BACKEND.canonical(backend) if isinstance(backend, str) else backend


def check(reference: str, base_url: str | None = None, lora_rank: int = 0) -> None:
    """Refuse what is not a backend, without loading one of Assay's own (and torch with it), a rank that it cannot
    train, and a URL that would keep a key with the run.

    Raises:
        ConfigError: as `plugins.find`; `base_url` holds a user, a password or a query; `tinker` without a rank.
    """
    refuse(kept_secrets("base_url", base_url))
    if reference == "tinker" and lora_rank < 1:
        raise ConfigError(
            f"lora_rank={lora_rank} with backend=tinker: the Tinker API trains adapters alone. Set lora_rank to 1 or "
            "more, or backend=local."
        )
    if reference not in BACKEND.known:
        _opener(reference)


def check_access(reference: str, base_url: str | None) -> None:
    """Refuse a service that could not be asked for want of a key, before data are loaded for a run on it.

    Raises:
        ConfigError: there is no key, or it or the address cannot be used.
        ModuleNotFoundError: the service's package is not installed.
    """
    if reference == "tinker":
        from assay.backends.tinker.service import key_for, server_url

        key_for(server_url(base_url))


def tokenizer_of(reference: str, model_name: str) -> Tokenizer | None:
    """The tokenizer that a policy will have, without opening it; None where only the policy itself can tell.

    Raises:
        ModelError: there is no such model.
    """
    if reference != "local" or model_name == "scratch":
        return None
    from assay.backends.local.models import load_tokenizer

    found: Any = load_tokenizer(model_name)
    return found  # type: ignore[no-any-return]


async def open_named(reference: str, policy: PolicySpec, data: EnvData, resume: Path | None) -> Backend:
    """Open a policy.

    Raises:
        ConfigError: the backend does not exist, or what it opened is not a backend.
        AssayError: what the backend raises.
    """
    backend = await _opener(reference)(policy, data, resume)
    if lacking := sorted(name for name in _members(Backend) if not hasattr(backend, name)):
        raise ConfigError(
            f"backend={reference} opened a {type(backend).__name__}, which is not a backend: it lacks "
            f"{', '.join(lacking)}. See assay.backends.base.Backend."
        )
    return backend


def _opener(reference: str) -> Opener:
    found: Opener = find(reference, BACKEND, "backend")
    wrong = "" if inspect.iscoroutinefunction(found) else "it is not async"
    try:
        inspect.signature(found).bind("policy", "data", "resume")
    except TypeError as error:
        wrong = str(error)
    if wrong:
        raise ConfigError(
            f"backend={reference} has the signature {signature(found)}: {wrong}. A backend is opened by "
            "`async def open(policy, data, resume)`."
        )
    return found


def _members(protocol: type) -> set[str]:
    """The names that a class needs to implement a protocol."""
    return {*protocol.__annotations__, *(name for name in vars(protocol) if not name.startswith("_"))}
