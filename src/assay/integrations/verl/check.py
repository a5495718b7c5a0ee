"""What verl would silently make of a config: keys that it ignores, and settings that turn a failure into a reward of 0.

    findings = check_config(compose(["reward.custom_reward_function.path=pkg://assay.integrations.verl", ...]))

verl 0.9 still composes the keys of older versions (`custom_reward_function`, `reward_model`, `sandbox_fusion`), so Hydra
accepts them, and then reads none of them: training goes on with verl's own scorer. Older versions do the same to the
keys of 0.9. Whatever is found is said with the key to set instead.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from assay.errors import AssayError, ConfigError, MissingDependencyError
from assay.integrations.rewards import find_reward
from assay.integrations.settings import plain, read_settings

Level = Literal["error", "warning"]
OURS = "pkg://assay.integrations.verl"
OUR_MANAGER = "AssayRewardManager"
USE_OURS = (
    f"reward.custom_reward_function.path={OURS} reward.custom_reward_function.name=acompute_score, or "
    f"reward.reward_manager.source=importlib reward.reward_manager.module.path={OURS}.manager "
    f"reward.reward_manager.name={OUR_MANAGER}"
)
MANAGERS_09 = ("naive", "dapo", "gdpo", "rate_limited", "remote")
"""Registered in verl 0.9.1."""
MOVED: Mapping[str, str] = {
    "custom_reward_function": "reward.custom_reward_function",
    "reward_model.num_workers": "reward.num_workers",
    "reward_model.reward_manager": "reward.reward_manager.name",
    "reward_model.reward_loop_source": "reward.reward_manager.source",
    "reward_model.reward_loop_module_path": "reward.reward_manager.module.path",
    "reward_model.reward_loop_class_name": "reward.reward_manager.name",
    "reward_model.reward_kwargs": "reward.custom_reward_function.reward_kwargs",
    "reward_model.model.path": "reward.reward_model.model_path",
    "reward_model.max_concurrent": "reward.max_concurrent",
    "reward_model.max_rpm": "reward.max_rpm",
    "reward_model.max_tpm": "reward.max_tpm",
    "reward_model.timeout": "reward.timeout",
    "reward_model": "reward.reward_model",
    "sandbox_fusion": "reward.sandbox_fusion",
}
"""Key before 0.9 -> key of 0.9; the longest that fits."""
LIMITS = ("max_concurrent", "max_rpm", "max_tpm", "timeout", "estimated_tokens_per_request")
"""Read by the rate_limited manager alone."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that verl would do other than the config says."""

    level: Level
    key: str
    message: str

    def __str__(self) -> str:
        return f"{self.level}: {self.key}: {self.message}"


def check_config(config: Any) -> list[Finding]:
    """Everything that is wrong with the reward keys of a composed verl config (OmegaConf or nested dictionaries).

    Which generation of verl it is for is seen from the keys that verl's own files have given it.
    """
    data = plain(config)
    new = isinstance(_at(data, "reward.reward_manager"), dict)
    return [*(_check_09(data) if new else _check_before(data))]


def compose(overrides: Sequence[str], config_name: str = "ppo_trainer") -> Any:
    """The config that verl's trainer would see, from verl's own YAML files.

    Raises:
        MissingDependencyError: verl or Hydra is not installed.  ConfigError: Hydra refuses the overrides.
    """
    spec = importlib.util.find_spec("verl")
    if spec is None or not spec.submodule_search_locations:
        raise MissingDependencyError("verl is not installed here, so its config cannot be composed. Install verl.")
    try:
        from hydra import compose as hydra_compose
        from hydra import initialize_config_dir
        from hydra.errors import HydraException
        from omegaconf.errors import OmegaConfBaseException
    except ImportError as error:
        raise MissingDependencyError("Composing verl's config needs Hydra: pip install hydra-core.") from error
    folder = Path(spec.submodule_search_locations[0]) / "trainer" / "config"
    try:
        with initialize_config_dir(str(folder.resolve()), version_base=None):
            return hydra_compose(config_name, overrides=list(overrides))
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(f"verl's config cannot be composed with these overrides: {error}") from error


def _check_09(data: Mapping[str, Any]) -> Iterator[Finding]:
    for key in _set_keys(data, ("custom_reward_function", "reward_model", "sandbox_fusion")):
        old = next(old for old in sorted(MOVED, key=len, reverse=True) if key == old or key.startswith(f"{old}."))
        instead = MOVED[old] + key.removeprefix(old)
        value = _at(data, key)
        hint = _manager_hint(value) if instead == "reward.reward_manager.name" else f"Set {instead}={value}."
        yield Finding("error", key, f"verl 0.9 accepts this key of older versions and reads it nowhere. {hint}")
    yield from _check_manager(data)
    yield from _check_function(data, "reward.custom_reward_function", generation="0.9")
    yield from _check_failures(data)


def _manager_hint(value: object) -> str:
    if value in ("batch", "prime"):
        return f"verl 0.9 has no manager {value}: set {USE_OURS}."
    return f"Set reward.reward_manager.name={value}."


def _check_manager(data: Mapping[str, Any]) -> Iterator[Finding]:
    key = "reward.reward_manager"
    manager = _at(data, key)
    name, source = manager.get("name"), manager.get("source")
    module = manager.get("module") or {}
    if source == "register":
        if name not in MANAGERS_09 and name not in _registered():
            yield Finding("error", f"{key}.name", f"{name} is no manager that verl 0.9 has. {_manager_hint(name)}")
        if module.get("path"):
            message = f"ignored while {key}.source=register. Set {key}.source=importlib."
            yield Finding("error", f"{key}.module.path", message)
    elif source == "importlib":
        if not module.get("path"):
            yield Finding("error", f"{key}.module.path", "source=importlib takes the manager from here, and it is null.")
        if module.get("name") not in (None, "custom_reward_manager", name):
            message = f"verl ignores it and takes the class from {key}.name={name}. Set {key}.name={module['name']}."
            yield Finding("error", f"{key}.module.name", message)
    if name == "rate_limited":
        most = _at(data, "reward.max_concurrent") or 1
        workers = _at(data, "reward.num_workers")
        yield Finding(
            "error",
            f"{key}.name",
            "rate_limited gives a sample that fails or times out the reward 0.0, as if the model had been wrong, and its "
            f"limits hold per worker: max_concurrent={most} in each of {workers} workers. Use naive with acompute_score: "
            "the engine limits, retries, and shares both among workers.",
        )
    else:
        for limit in LIMITS:
            if _at(data, f"reward.{limit}") is not None:
                instead = "reward.custom_reward_function.reward_kwargs.engine.*"
                message = f"only the manager rate_limited reads it, and this is {name}. Set limits of Assay's under {instead}."
                yield Finding("error", f"reward.{limit}", message)
    if _at(data, "reward.reward_kwargs") is not None and name not in ("dapo", "gdpo"):
        message = "verl hands it to the manager dapo alone. Set reward.custom_reward_function.reward_kwargs."
        yield Finding("error", "reward.reward_kwargs", message)


def _registered() -> Sequence[str]:
    """Names that modules of VERL_USE_EXTERNAL_MODULES have registered; importing verl takes seconds."""
    if not os.environ.get("VERL_USE_EXTERNAL_MODULES"):
        return ()
    try:
        from verl.experimental.reward_loop.reward_manager.registry import REWARD_MANAGER
    except ImportError:
        return ()
    return tuple(REWARD_MANAGER)


def _check_function(data: Mapping[str, Any], key: str, generation: Literal["0.9", "before"]) -> Iterator[Finding]:
    custom = _at(data, key) or {}
    path, name, kwargs = custom.get("path"), custom.get("name") or "compute_score", custom.get("reward_kwargs")
    manager = _at(data, "reward.reward_manager" if generation == "0.9" else "reward_model") or {}
    ours = generation == "0.9" and manager.get("name") == OUR_MANAGER
    if ours and path and not _is_ours(path):
        yield Finding("error", f"{key}.path", f"{OUR_MANAGER} never calls it. Remove it, or use another manager.")
    if not path:
        if not ours:
            cure = USE_OURS if generation == "0.9" else f"{key}.path={our_file()} {key}.name=compute_score"
            yield Finding("error", f"{key}.path", f"null: verl scores with its own rules, and no reward of yours is called. Set {cure}.")
            if kwargs:
                yield Finding("error", f"{key}.reward_kwargs", f"ignored while {key}.path is null.")
            return
    else:
        function, problem = _load(str(path), str(name))
        if problem:
            yield Finding("error", f"{key}.path", problem)
        else:
            yield from _check_callable(function, f"{key}.name", name, manager, generation)
    if ours or _is_ours(path):
        yield from _check_settings(kwargs or {}, f"{key}.reward_kwargs")


def _check_callable(
    function: Any, key: str, name: object, manager: Mapping[str, Any], generation: Literal["0.9", "before"]
) -> Iterator[Finding]:
    asynchronous = inspect.iscoroutinefunction(function)
    if not callable(function):
        yield Finding("error", key, f"{name} is a {type(function).__name__}, which cannot be called.")
    elif not asynchronous and inspect.iscoroutinefunction(getattr(function, "__call__", None)):
        message = f"{name} is an object with an asynchronous __call__: verl takes its coroutine for the reward. Use a plain `async def`."
        yield Finding("error", key, message)
    elif generation == "0.9" and manager.get("name") == "remote" and asynchronous:
        yield Finding("error", key, f"{name} is asynchronous, and the manager remote takes functions that block. Use the manager naive.")
    elif generation == "0.9" and not asynchronous and manager.get("name") in ("naive", "dapo", "gdpo"):
        message = (
            f"{name} blocks, so each reward worker scores only a handful of samples at once, in threads (CPUs + 4, at most "
            "32). Name an `async def`: acompute_score."
        )
        yield Finding("warning", key, message)
    elif generation == "before" and asynchronous and not manager.get("use_reward_loop"):
        yield Finding("error", key, f"{name} is asynchronous, and this manager takes its coroutine for the reward. Set {key}=compute_score.")


def _check_settings(kwargs: Mapping[str, object], key: str) -> Iterator[Finding]:
    """Settings of ours are read here, so that a wrong one is found before any worker starts."""
    try:
        config = read_settings(kwargs)
        find_reward(config.reward, config.options, config.judge)
    except AssayError as error:
        yield Finding("error", key, str(error))
        return
    variable = config.judge.api_key_env
    if variable and not os.environ.get(variable):
        message = f"judge.api_key_env={variable} is not set here. Export it where Ray is started, or set judge.api_key_env to nothing."
        yield Finding("warning", key, message)


def _check_failures(data: Mapping[str, Any]) -> Iterator[Finding]:
    kwargs = _at(data, "reward.custom_reward_function.reward_kwargs") or {}
    try:
        policy = read_settings(kwargs).engine.on_failure
    except AssayError:
        return  # said already
    trainer = _at(data, "trainer") or {}
    if policy in ("drop", "group_mean", "raise") and trainer.get("use_v1") is False:
        message = (
            f"engine.on_failure={policy}: with the V0 trainer one sample that cannot be scored ends the run. The V1 trainer "
            "leaves it out of its group. Set trainer.use_v1=true."
        )
        yield Finding("warning", "trainer.use_v1", message)


def _check_before(data: Mapping[str, Any]) -> Iterator[Finding]:
    for key in _set_keys(data, ("reward",)):
        old = next((old for old, new in MOVED.items() if key == new or key.startswith(f"{new}.")), None)
        instead = f"Set {old}{key.removeprefix(MOVED[old])}." if old else "It belongs to verl 0.9."
        yield Finding("error", key, f"this verl is older than 0.9 and reads no such key. {instead}")
    yield from _check_function(data, "custom_reward_function", generation="before")
    manager = _at(data, "reward_model.reward_manager") or "naive"
    key = "reward_model.reward_manager"
    if manager == "prime":
        yield Finding(
            "error",
            key,
            "prime scores each sample in a process of its own, which shares no limit with the others, passes arguments in an "
            "order of its own, and makes any failure a reward of 0.0. Set batch.",
        )
    if manager == "rate_limited":
        yield Finding("error", key, "rate_limited gives a sample that fails or times out the reward 0.0. Set batch.")
    if manager == "naive" and not _at(data, "reward_model.use_reward_loop"):
        yield Finding("warning", key, "naive scores one sample after the other: a judge would be asked one question at a time. Set batch.")
    if _at(data, "reward_model.reward_kwargs.compute_score_timeout"):
        key = "reward_model.reward_kwargs.compute_score_timeout"
        yield Finding("error", key, "a sample that takes longer is given the reward 0.0. Set engine.call_deadline_s instead.")
    if _at(data, "reward_model.launch_reward_fn_async"):
        message = (
            "each step is scored by a new process, which forgets limit and counters. With share=auto Assay's Ray actor keeps "
            "them; do not set share=process."
        )
        yield Finding("warning", "reward_model.launch_reward_fn_async", message)


def _set_keys(data: Mapping[str, Any], roots: Sequence[str]) -> Iterator[str]:
    """Dotted keys below `roots` that hold anything but null."""
    for root in roots:
        if root in data:
            yield from _leaves(root, data[root])


def _leaves(key: str, value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, below in value.items():
            yield from _leaves(f"{key}.{name}", below)
    elif value is not None and not key.endswith("._target_"):
        yield key


def _at(data: Any, key: str) -> Any:
    for name in key.split("."):
        if not isinstance(data, Mapping):
            return None
        data = data.get(name)
    return data


def _load(path: str, name: str) -> tuple[Any, str]:
    """The object that verl would load, and what is wrong where it could not."""
    try:
        if path.startswith("pkg://"):
            module = importlib.import_module(path.removeprefix("pkg://").replace("/", "."))
        else:
            file = Path(path.removeprefix("file://"))
            spec = importlib.util.spec_from_file_location("assay_checked_reward", file) if file.exists() else None
            if spec is None or spec.loader is None:
                return None, f"there is no Python file {path} here (looked in {Path.cwd()})."
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
    except ImportError as error:
        return None, f"{path} cannot be imported: {error}."
    if not hasattr(module, name):
        return None, f"{path} has no {name}."
    return getattr(module, name), ""


def _is_ours(path: object) -> bool:
    return isinstance(path, str) and "assay.integrations.verl" in path.replace("/", ".")


def our_file() -> str:
    """The file that verl versions without `pkg://` are given as `custom_reward_function.path`."""
    return str(Path(__file__).with_name("__init__.py"))
