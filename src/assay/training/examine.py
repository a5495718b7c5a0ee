"""What a run needs of this machine, the rows of `assay doctor`. Each room checks its own needs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import islice
from pathlib import Path

from assay.backends.config import LocalBackend
from assay.envs.base import EnvData, build_data, iter_builders
from assay.errors import AssayError, pip_install
from assay.rewards.client.resources import key_check
from assay.rewards.config import JudgeConfig
from assay.storage.files import disk_check
from assay.training.config import TrainingConfig
from assay.types import Check, SamplingParams

__all__ = ["examine_machine", "examine_run"]

PROMPTS = 64
"""Tasks among whose prompts some of different lengths are tried out."""


async def examine_machine() -> list[Check]:
    """Everything that Assay can use, not only what one run needs; a missing package is a row too."""
    from assay.kernels.compile.toolkit import checks as compiler_checks
    from assay.sandbox.host.probe import checks as sandbox_checks

    return [
        *await _or_lacking("versions", "torch", _device_checks),
        *await _or_lacking("engine", "chess", _engine_checks),
        *sandbox_checks(),
        *compiler_checks(),
        _judge_check(),
        disk_check("runs", Path("runs")),
        disk_check("caches", Path("~/.cache/assay").expanduser()),
    ]


def _judge_check() -> Check:
    """Whether the default judge has a key. Without one a machine is well: most runs ask no judge, and the check of one
    that does fails."""
    found = key_check(JudgeConfig())
    return found if found.ok else Check(found.name, True, f"{found.found}; only runs that ask a judge need one")


async def _device_checks() -> list[Check]:
    from assay.backends.local.hardware import checks

    return checks(LocalBackend())


async def _engine_checks() -> list[Check]:
    from assay.envs.chess.engine.engine_check import engine_check
    from assay.envs.chess.engine.stockfish import StockfishConfig

    return [await engine_check(StockfishConfig())]


async def _or_lacking(name: str, extra: str, look: Callable[[], Awaitable[list[Check]]]) -> list[Check]:
    """What was seen, or one row that names the package without which nobody can look, and the extra that brings it."""
    try:
        return await look()
    except ModuleNotFoundError as error:
        return [Check(name, False, f"{error.name} is not installed", pip_install(extra))]


async def examine_run(config: TrainingConfig) -> list[Check]:
    """What the run of a config needs: its device, disk and environment, its chat template, and the policy itself."""
    from assay.training.settle import settle  # imports torch, and the machine is examined without it, too

    found: list[Check] = []
    if config.backend == "local":
        from assay.backends.local.hardware import checks as device_checks

        found += device_checks(config.local)
    found += [disk_check("runs", config.log_path.expanduser()), disk_check("caches", config.cache_dir.expanduser())]
    found += await config.active_builder.checks(config.build_context())
    try:
        config = settle(config)
        data = build_data(config.active_builder, config.build_context())
    except AssayError as error:
        return [*found, _failed("model and data", error)]
    try:
        return [*found, *await _policy_checks(config, data)]
    except AssayError as error:
        return [*found, _failed("model", error)]
    finally:
        await data.close()


async def _policy_checks(config: TrainingConfig, data: EnvData) -> list[Check]:
    from assay.backends.probe import check_agreement
    from assay.training.dry_run import foresee
    from assay.training.session import check_data, open_policy

    memory, obstacle = foresee(config, data, None)
    if obstacle:
        return [Check("model", False, " ".join([*memory, obstacle]), "see there; the model was not loaded")]
    check_data(config, data)
    backend, renderer = await open_policy(config, data, None)
    try:
        rows = [Check("model", True, f"{config.model_name}, context of {backend.context_length} tokens")]
        rows += [Check("memory", True, words) for words in memory]
        rows.append(Check("renderer", True, renderer.describe(config.build_context().max_turns)))
        tasks = [builder.task for builder in islice(iter_builders(data.train), PROMPTS)]
        if tasks:
            params = SamplingParams(config.max_tokens, config.temperature, stop=renderer.stop)
            rows.append(await check_agreement(backend, [renderer.start(task.prompt) for task in tasks], params))
        return rows
    finally:
        await backend.close()


def _failed(name: str, error: AssayError) -> Check:
    """A row for what a start would refuse; the message says what to do."""
    return Check(name, False, str(error), "do as the message says")
