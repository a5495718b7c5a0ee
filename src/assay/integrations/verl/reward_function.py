"""Whether the function that a verl config names can be called as verl calls it; and what checks of configs share."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from assay.errors import AssayError
from assay.integrations.common.settings import read_settings
from assay.rewards.combined import asks_judge
from assay.rewards.named import find_rewards

OURS = "pkg://assay.integrations.verl"
OUR_MANAGER = "AssayRewardManager"
Generation = Literal["0.9", "before"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that verl would do other than the config says."""

    level: Literal["error", "warning"]
    key: str
    message: str

    def __str__(self) -> str:
        return f"{self.level}: {self.key}: {self.message}"


def error(key: str, message: str) -> Finding:
    """A finding that makes the config useless."""
    return Finding("error", key, message)


def warning(key: str, message: str) -> Finding:
    """A finding that does not make the config useless."""
    return Finding("warning", key, message)


def at(data: Any, key: str) -> Any:
    """The value at a dotted key; None if there is none."""
    for name in key.split("."):
        if not isinstance(data, Mapping):
            return None
        data = data.get(name)
    return data


def leaves(data: Mapping[str, Any], roots: Sequence[str]) -> Iterator[str]:
    """Dotted keys below `roots` that hold anything but null."""
    for root in roots:
        yield from _leaves(root, data.get(root))


def _leaves(key: str, value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, below in value.items():
            yield from _leaves(f"{key}.{name}", below)
    elif value is not None and not key.endswith("._target_"):
        yield key


def check_function(
    data: Mapping[str, Any], key: str, manager: Mapping[str, Any], use_ours: str, generation: Generation
) -> Iterator[Finding]:
    """What is wrong with the function at `key` and with its keyword arguments, under `manager`."""
    custom = at(data, key) or {}
    path, name, kwargs = custom.get("path"), str(custom.get("name") or "compute_score"), custom.get("reward_kwargs")
    our_manager = generation == "0.9" and manager.get("name") == OUR_MANAGER
    if not path and not our_manager:
        yield error(f"{key}.path", f"null: verl scores with its own rules, not with your reward. Set {use_ours}.")
        if kwargs:
            yield error(f"{key}.reward_kwargs", f"ignored while {key}.path is null.")
        return
    if path and our_manager and not is_ours(path):
        yield error(f"{key}.path", f"{OUR_MANAGER} never calls it. Remove it, or use another manager.")
    elif path:
        function, problem = _load(str(path), name)
        if problem:
            yield error(f"{key}.path", problem)
        else:
            yield from _check_callable(function, name, f"{key}.name", manager, generation)
    if our_manager or is_ours(path):
        yield from _check_settings(kwargs or {}, f"{key}.reward_kwargs")


def is_ours(path: object) -> bool:
    """Whether a function at this path is Assay's."""
    return isinstance(path, str) and "assay.integrations.verl" in path.replace("/", ".")


def _check_callable(
    function: Any, name: str, key: str, manager: Mapping[str, Any], generation: Generation
) -> Iterator[Finding]:
    asynchronous = inspect.iscoroutinefunction(function)
    if not callable(function):
        yield error(key, f"{name} is a {type(function).__name__}, which cannot be called.")
    elif not asynchronous and inspect.iscoroutinefunction(type(function).__call__):
        what = f"{name} is an object with an asynchronous __call__"
        yield error(key, f"{what}: verl takes its coroutine for the reward. Use a plain `async def`.")
    elif generation == "before":
        if asynchronous and not manager.get("use_reward_loop"):
            what = f"{name} is asynchronous, and this manager takes its coroutine for the reward."
            yield error(key, f"{what} Set {key}=compute_score.")
    elif asynchronous and manager.get("name") == "remote":
        yield error(key, f"{name} is asynchronous, and the manager remote wants a function that blocks. Use naive.")
    elif not asynchronous and manager.get("name") in ("naive", "dapo", "gdpo"):
        yield warning(
            key,
            f"{name} blocks, so each reward worker scores only a handful of samples at once, in threads (CPUs + 4, at "
            "most 32). Name an `async def`: acompute_score.",
        )


def _check_settings(kwargs: Mapping[str, object], key: str) -> Iterator[Finding]:
    """Settings of ours are read here, so that a wrong one is found before any worker starts."""
    try:
        config = read_settings(kwargs)
        reward = find_rewards(config.reward, config.options, config.judge)
    except AssayError as wrong:
        yield error(key, str(wrong))
        return
    variable = config.judge.api_key_env
    if variable and not os.environ.get(variable) and asks_judge(reward):
        missing = f"{variable} (judge.api_key_env) is not set here."
        yield warning(key, f"{missing} Export it where Ray is started, or set judge.api_key_env to an empty text.")


def _load(path: str, name: str) -> tuple[Any, str]:
    """The object that verl would load, or what is wrong where it could not."""
    try:
        if path.startswith("pkg://"):
            module = importlib.import_module(path.removeprefix("pkg://").replace("/", "."))
        else:
            file = Path(path.removeprefix("file://"))
            spec = importlib.util.spec_from_file_location("assay_checked_reward", file) if file.exists() else None
            if spec is None or spec.loader is None:
                return None, f"the Python file {path} does not exist (looked in {Path.cwd()})."
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
    except ImportError as wrong:
        return None, f"{path} cannot be imported: {wrong}."
    if not hasattr(module, name):
        return None, f"{path} has no {name}."
    return getattr(module, name), ""
