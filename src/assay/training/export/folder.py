"""`assay export`: one checkpoint of a run as a Hugging Face folder, put in its place as a whole."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path

from assay.backends.local.export import hub, weights
from assay.errors import ConfigError, RunDirectoryError
from assay.rollouts.renderers.named import make_renderer
from assay.storage.files import Writing, encode_json, human_bytes, read_object, remove
from assay.training.config import TrainingConfig
from assay.training.export.card import Card, render
from assay.training.run.checkpoints import checkpoint_folder, open_checkpoint
from assay.training.run.ledger import Commit
from assay.training.run.reader import best_checkpoint, evaluated_steps, find_checkpoint, measurement
from assay.training.run.rollouts import open_rollouts

logger = logging.getLogger(__name__)

RECORD = "assay_export.json"
"""File by which a later export knows that it may replace the folder. It is not pushed."""
VERSION = 1


@dataclass(frozen=True)
class Wanted:
    """What to export."""

    target: Path
    merge: bool = False
    batch: int | None = None
    """The checkpoint after so many RL batches; None means the last one."""
    best: bool = False
    """The checkpoint with the largest `best_metric` instead."""
    dtype: weights.Precision | None = None
    """Precision of the weights of a whole model; None means the model's own."""
    repo: str | None = None
    """Repository on the hub to push the folder to."""
    public: bool = False


@dataclass(frozen=True)
class Exported:
    """What was exported."""

    path: Path
    checkpoint: str
    size: int
    """Bytes of the folder."""
    adapters: bool
    """Whether it holds adapters alone."""
    url: str | None = None
    """Where it was pushed to."""


def export(run: Path, config: TrainingConfig, wanted: Wanted) -> Exported:
    """Write a checkpoint of the run at `run` into the folder `wanted.target`, and push it where that is asked for.

    Raises:
        RunDirectoryError: no such run or checkpoint, or the folder holds something that no export wrote.
        ConfigError: the run's backend keeps its model elsewhere, or the folder cannot be pushed.
        ModelError: the model cannot be loaded, merged or pushed.
    """
    if config.backend != "local":
        raise ConfigError(f"The run used backend={config.backend}, and only models of backend=local can be exported.")
    token = hub.check(wanted.repo, os.environ) if wanted.repo is not None else None
    _check_target(wanted.target)
    commit = best_checkpoint(run, config.best_metric) if wanted.best else find_checkpoint(run, wanted.batch)
    model = open_checkpoint(checkpoint_folder(run, commit)).policy / "model"
    base = weights.adapter_base(model)
    adapters = base is not None and not wanted.merge
    _check_use(config, wanted, adapters, base)
    partial = wanted.target.with_name(wanted.target.name + ".partial")
    with Writing(wanted.target, "the exported model"):
        remove(partial)
        partial.mkdir(parents=True)
        try:
            _write(config, wanted, model, None if base is None else config.model_name, adapters, partial)
            card = _card(run, config, commit, wanted, adapters)
            (partial / "README.md").write_text(render(card), encoding="utf-8")
            size = _write_record(partial, commit)
            remove(wanted.target)
            os.replace(partial, wanted.target)
        finally:
            remove(partial)
    url = None
    if wanted.repo is not None and token is not None:
        message = f"Checkpoint {commit.checkpoint} of a run with Assay"
        url = hub.push(wanted.target, wanted.repo, token, public=wanted.public, message=message, leave_out=[RECORD])
    return Exported(wanted.target, str(commit.checkpoint), size, adapters, url)


def _check_target(target: Path) -> None:
    """Refuse to write over anything that no export wrote."""
    if target.name in ("", ".."):
        raise RunDirectoryError(
            f"{target} is not the name of a folder, and an export puts a whole folder in its place. Give one by its "
            "name, such as out/model."
        )
    if not target.exists():
        return
    if not target.is_dir():
        raise RunDirectoryError(f"{target} is a file, and an exported model needs a folder. Choose another.")
    found = {path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file()}
    record = read_object(target / RECORD)
    ours = {RECORD, *(record.get("files") or ())} if record is not None else set()
    if foreign := sorted(found - ours):
        raise RunDirectoryError(
            f"{target} is not empty and holds what no export wrote ({', '.join(foreign[:5])}), which would be lost. "
            "Choose a new or empty folder."
        )


def _check_use(config: TrainingConfig, wanted: Wanted, adapters: bool, base: str | None) -> None:
    if wanted.merge and base is None:
        logger.info("The run trained all weights, so there are no adapters to merge.")
    if adapters and wanted.dtype is not None:
        raise ConfigError(f"--dtype {wanted.dtype} is for whole models: adapters stay as trained. Add --merge.")
    if adapters and wanted.repo is not None and _hub_id(config) is None:
        raise ConfigError(
            f"The adapters are for the model in the folder {config.model_name}, which nobody else has, so they would "
            "be of no use on the hub. Add --merge."
        )


def _write(config: TrainingConfig, wanted: Wanted, model: Path, base: str | None, adapters: bool, target: Path) -> None:
    tokenizer = weights.load_tokenizer(model)
    if adapters:
        weights.write_adapter(model, tokenizer, target)
        return
    stop = make_renderer(config.active_builder.renderer_name, tokenizer, config.active_builder.chat).stop
    generation = weights.generation_fields(tokenizer, stop, config.temperature, config.max_tokens)
    weights.write_model(model, base, config.local.dtype, wanted.dtype, tokenizer, generation, target)


def _card(run: Path, config: TrainingConfig, commit: Commit, wanted: Wanted, adapters: bool) -> Card:
    rollouts = open_rollouts(run, committed=True)
    evaluated = evaluated_steps(rollouts)
    return Card(
        name=wanted.repo or wanted.target.resolve().name,
        config=config,
        commit=commit,
        base=_hub_id(config),
        adapters=adapters,
        code=read_object(run / "code.json") or {},
        before=measurement(rollouts, evaluated[0]) if evaluated else None,
        after=measurement(rollouts, commit.step) if commit.step in evaluated else None,
    )


def _hub_id(config: TrainingConfig) -> str | None:
    """The model's id on the hub; None for one from scratch or from a folder."""
    name = config.model_name
    if name == "scratch" or name.startswith((".", "~", "/")) or Path(name).expanduser().is_dir():
        return None
    return name


def _write_record(folder: Path, commit: Commit) -> int:
    """Write the list of the folder's files; returns the bytes of all of them."""
    sizes = {p.relative_to(folder).as_posix(): p.stat().st_size for p in sorted(folder.rglob("*")) if p.is_file()}
    record = {"version": VERSION, "checkpoint": commit.checkpoint, "files": list(sizes)}
    (folder / RECORD).write_bytes(encode_json(record, indent=2) + b"\n")
    return sum(sizes.values())


def describe(exported: Exported) -> str:
    """What was exported, and how it is loaded."""
    kind = "adapters" if exported.adapters else "model"
    lines = [f"Exported the {kind} of {exported.checkpoint} to {exported.path} ({human_bytes(exported.size)})."]
    if not exported.adapters:
        lines.append(f'Load it with AutoModelForCausalLM.from_pretrained("{exported.path}").')
    if exported.url is not None:
        lines.append(f"Pushed to {exported.url}")
    return "\n".join(lines)
