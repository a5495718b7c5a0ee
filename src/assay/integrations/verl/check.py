"""What verl would silently do with a config: keys that it ignores, and settings that turn a failure into a reward of 0.

    findings = check_config(compose(["reward.custom_reward_function.path=pkg://assay.integrations.verl", ...]))

verl 0.9 still composes the keys of older versions (`custom_reward_function`, `reward_model`, `sandbox_fusion`), so
Hydra accepts them, but verl never reads them: training goes on with verl's own scorer. Older versions do the same with
the keys of 0.9. Each finding names the key to set instead.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from assay.errors import AssayError, ConfigError, MissingDependencyError
from assay.integrations.common.settings import read_settings
from assay.integrations.verl.agent_check import check_agent_loop, plays_environments
from assay.integrations.verl.reward_function import (
    OUR_MANAGER,
    OURS,
    Finding,
    at,
    check_function,
    error,
    leaves,
    warning,
)

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
    "reward_model.max_concurrent": "reward.custom_reward_function.reward_kwargs.engine.max_in_flight",
    "reward_model.max_rpm": "reward.custom_reward_function.reward_kwargs.engine.requests_per_minute",
    "reward_model.max_tpm": "reward.custom_reward_function.reward_kwargs.engine.tokens_per_minute",
    "reward_model.timeout": "reward.custom_reward_function.reward_kwargs.engine.call_deadline_s",
    "reward_model": "reward.reward_model",
    "sandbox_fusion": "reward.sandbox_fusion",
}
"""Key before 0.9 -> key of 0.9, or the engine's own in the place of limits per worker; the longest that fits."""
LIMITS = ("max_concurrent", "max_rpm", "max_tpm", "timeout", "estimated_tokens_per_request")
"""Read by the rate_limited manager alone."""
SECTIONS = (
    *("reward", "reward_model", "custom_reward_function", "sandbox_fusion", "trainer", "algorithm", "data"),
    "actor_rollout_ref.rollout",
)
"""Keys of the parts that are looked at."""
_KWARGS = "reward.custom_reward_function.reward_kwargs"


def check_config(config: Any) -> list[Finding]:
    """Everything that is wrong with the keys of rewards and agent loops of a composed verl config.

    The config is OmegaConf's, or nested dictionaries. Which generation of verl it is for is seen from the keys that
    verl's own files have given it.

    Raises:
        ConfigError: a reference in the config does not resolve.
    """
    data = config if isinstance(config, dict) else _resolved(config)
    new = isinstance(at(data, "reward.reward_manager"), dict)
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
    except ImportError as missing:
        raise MissingDependencyError("Composing verl's config needs Hydra: pip install hydra-core.") from missing
    folder = Path(spec.submodule_search_locations[0]) / "trainer" / "config"
    try:
        with initialize_config_dir(str(folder.resolve()), version_base=None):
            return hydra_compose(config_name, overrides=list(overrides))
    except (HydraException, OmegaConfBaseException) as refused:
        raise ConfigError(f"verl's config cannot be composed with these overrides: {refused}") from refused


def _resolved(config: Any) -> dict[str, Any]:
    """The parts of an OmegaConf config that are looked at, as plain data; elsewhere values may still be missing."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    data: dict[str, Any] = {}
    try:
        for key in SECTIONS:
            if (part := OmegaConf.select(config, key)) is None:
                continue
            *above, name = key.split(".")
            place = data
            for step in above:
                place = place.setdefault(step, {})
            place[name] = OmegaConf.to_container(part, resolve=True)
        return data
    except OmegaConfBaseException as refused:
        raise ConfigError(f"verl's config cannot be resolved: {refused}") from refused


def our_file() -> str:
    """The file that verl versions without `pkg://` are given as `custom_reward_function.path`."""
    return str(Path(__file__).with_name("__init__.py"))


def _check_09(data: Mapping[str, Any]) -> Iterator[Finding]:
    for key in leaves(data, ("custom_reward_function", "reward_model", "sandbox_fusion")):
        old = next(old for old in sorted(MOVED, key=len, reverse=True) if key == old or key.startswith(f"{old}."))
        instead, value = MOVED[old] + key.removeprefix(old), at(data, key)
        hint = _manager_hint(value) if instead == "reward.reward_manager.name" else f"Set {instead}={value}."
        yield error(key, f"verl 0.9 accepts this key of older versions but never reads it. {hint}")
    if plays_environments(data):
        yield from check_agent_loop(data)
        return
    manager = at(data, "reward.reward_manager")
    yield from _check_source(manager)
    yield from _check_limits(data, manager.get("name"))
    yield from check_function(data, "reward.custom_reward_function", manager, USE_OURS, generation="0.9")
    yield from _check_trainer(data)


def _manager_hint(value: object) -> str:
    if value in ("batch", "prime"):
        return f"verl 0.9 has no manager {value}: set {USE_OURS}."
    return f"Set reward.reward_manager.name={value}."


def _check_source(manager: Mapping[str, Any]) -> Iterator[Finding]:
    """Whether verl finds the manager where the config says."""
    key, name, source = "reward.reward_manager", manager.get("name"), manager.get("source")
    module = manager.get("module") or {}
    if source == "register":
        if name not in MANAGERS_09 and name not in _registered():
            listed = ", ".join(MANAGERS_09)
            hint = _manager_hint(name) if name in ("batch", "prime") else f"It has {listed}; or set {USE_OURS}."
            yield error(f"{key}.name", f"{name} is not a manager of verl 0.9. {hint}")
        if module.get("path"):
            yield error(f"{key}.module.path", f"ignored while {key}.source=register. Set {key}.source=importlib.")
    elif source == "importlib":
        if not module.get("path"):
            yield error(f"{key}.module.path", "null, and source=importlib loads the manager from this path.")
        if module.get("name") not in (None, "custom_reward_manager", name):
            took = f"verl ignores it and takes the class from {key}.name={name}."
            yield error(f"{key}.module.name", f"{took} Set {key}.name={module['name']}.")


def _registered() -> Sequence[str]:
    """Names that modules of VERL_USE_EXTERNAL_MODULES have registered; importing verl takes seconds."""
    if not os.environ.get("VERL_USE_EXTERNAL_MODULES"):
        return ()
    try:
        from verl.experimental.reward_loop.reward_manager.registry import REWARD_MANAGER
    except ImportError:
        return ()
    return tuple(REWARD_MANAGER)


def _check_limits(data: Mapping[str, Any], name: object) -> Iterator[Finding]:
    """What stands at `reward.*` and is read by some managers only, or read and harmful."""
    if name == "rate_limited":
        most, workers = at(data, "reward.max_concurrent") or 1, at(data, "reward.num_workers")
        yield error(
            "reward.reward_manager.name",
            "rate_limited gives a sample that fails or times out the reward 0.0, as if the model had been wrong, and "
            f"its limits hold per worker: max_concurrent={most} in each of {workers} workers. Use naive with "
            "acompute_score: the engine limits and retries, for all workers together.",
        )
    else:
        for limit in LIMITS:
            if at(data, f"reward.{limit}") is not None:
                ignored = f"only the manager rate_limited reads it, and this is {name}."
                yield error(f"reward.{limit}", f"{ignored} Set Assay's own limits: {_KWARGS}.engine.*")
    if at(data, "reward.reward_kwargs") is not None and name not in ("dapo", "gdpo"):
        yield error("reward.reward_kwargs", f"verl hands it to the manager dapo alone. Set {_KWARGS}.")


def _check_trainer(data: Mapping[str, Any]) -> Iterator[Finding]:
    try:
        policy = read_settings(at(data, _KWARGS) or {}).engine.on_failure
    except AssayError:
        return  # said already
    if policy != "constant" and at(data, "trainer.use_v1") is False:
        yield warning(
            "trainer.use_v1",
            f"engine.on_failure={policy}: with the V0 trainer one sample that cannot be scored ends the run. The V1 "
            "trainer leaves it out of its group. Set trainer.use_v1=true.",
        )


def _check_before(data: Mapping[str, Any]) -> Iterator[Finding]:
    for key in leaves(data, ("reward",)):
        old = next((old for old, new in MOVED.items() if key == new or key.startswith(f"{new}.")), None)
        instead = f"Set {old}{key.removeprefix(MOVED[old])}." if old else "It belongs to verl 0.9."
        yield error(key, f"this verl is older than 0.9 and does not read this key. {instead}")
    model = at(data, "reward_model") or {}
    use_ours = f"custom_reward_function.path={our_file()} custom_reward_function.name=compute_score"
    yield from check_function(data, "custom_reward_function", model, use_ours, generation="before")
    yield from _check_old_manager(model)


def _check_old_manager(model: Mapping[str, Any]) -> Iterator[Finding]:
    key, name = "reward_model.reward_manager", model.get("reward_manager") or "naive"
    if name == "prime":
        yield error(
            key,
            "prime scores each sample in a process of its own, which shares no limit with the others, passes arguments "
            "in an order of its own, and turns any failure into a reward of 0.0. Set batch.",
        )
    elif name == "rate_limited":
        yield error(key, "rate_limited gives a sample that fails or times out the reward 0.0. Set batch.")
    elif name == "naive" and not model.get("use_reward_loop"):
        yield warning(
            key, "naive scores one sample after the other: a judge is asked one question at a time. Set batch."
        )
    if at(model, "reward_kwargs.compute_score_timeout"):
        slow = "a sample that takes longer is given the reward 0.0."
        yield error("reward_model.reward_kwargs.compute_score_timeout", f"{slow} Set engine.call_deadline_s instead.")
    if model.get("launch_reward_fn_async"):
        yield warning(
            "reward_model.launch_reward_fn_async",
            "each step is scored by a new process, which forgets limit and counters. With share=auto Assay's Ray actor "
            "keeps them; do not set share=process.",
        )
