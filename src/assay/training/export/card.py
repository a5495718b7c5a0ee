"""The model card of an exported checkpoint: what was trained, what was measured, under which settings and versions.

Names no folder and no file of the machine, and of the settings only those that are numbers or choices. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from assay.training.config import TrainingConfig
from assay.training.report.comparison import Policy, difference, measured_policy, signed
from assay.training.run.ledger import Commit
from assay.training.run.reader import Measurement
from assay.types import Json


@dataclass(frozen=True)
class Card:
    """What a model card says."""

    name: str
    """Of the model: its repository, or the folder it is exported to."""
    config: TrainingConfig
    commit: Commit
    """The step whose checkpoint was exported."""
    base: str | None
    """Hub id of the model that was trained; None for one from scratch or from a folder."""
    adapters: bool
    """Whether the folder holds adapters alone."""
    code: Mapping[str, Json]
    """The run's `code.json`."""
    before: Measurement | None
    """The evaluation of the policy that RL started from."""
    after: Measurement | None
    """The evaluation of the exported policy, where the run made one."""


def render(card: Card) -> str:
    """The card in Markdown, with the front matter that the hub reads."""
    sections = [
        _front_matter(card),
        f"# {card.name}",
        _summary(card),
        "## Held-out results",
        _results(card),
        "## Use",
        _use(card),
        "## Settings",
        *_table(["setting", "value"], _settings(card.config)),
        "## Versions",
        *_table(["package", "version"], _versions(card.code)),
    ]
    return "\n\n".join(sections) + "\n"


def _front_matter(card: Card) -> str:
    lines = ["---", f"library_name: {'peft' if card.adapters else 'transformers'}", "pipeline_tag: text-generation"]
    if card.base is not None:
        lines += [f"base_model: {card.base}"]
    return "\n".join([*lines, "tags:", "- assay", "- reinforcement-learning", "---"])


def _summary(card: Card) -> str:
    config = card.config
    if config.model_name == "scratch":
        what = f"A {config.scratch.architecture} transformer from scratch"
    else:
        what = f"[{card.base}](https://huggingface.co/{card.base})" if card.base else "A model from a local folder"
    how = f"LoRA adapters of rank {config.lora_rank}" if config.lora_rank else "all weights"
    form = " The folder holds the adapters alone." if card.adapters else ""
    stages = [f"{config.sft.num_steps:,} supervised steps"] if config.sft.num_steps else []
    stages.append(f"{card.commit.batch:,} batches of reinforcement learning from verifiable rewards")
    return (
        f"{what}, trained ({how}) by {' and '.join(stages)} with Assay, on the environment "
        f"`{type(config.active_builder).__name__}`.{form}"
    )


def _results(card: Card) -> str:
    if card.before is None:
        return "The run had no held-out evaluation."
    before = measured_policy("before", card.before)
    after = measured_policy("after", card.after) if card.after is not None else None
    names = dict.fromkeys([*before.values, *(after.values if after is not None else ())])
    rows = [[name, *_row(name, before, after)] for name in names]
    counts = f"{len(card.before.tasks)} tasks, {card.config.eval.samples_per_task} samples each"
    note = "" if after is not None else " This checkpoint's own step was not evaluated."
    text = f"Means over {counts}, with 95 % intervals over tasks; differences are taken task by task.{note}"
    heading = ["metric", "before RL", "this checkpoint", "difference"]
    return "\n\n".join([text, *_table(heading, rows)])


def _row(name: str, before: Policy, after: Policy | None) -> list[str]:
    gain = difference(after, before, name) if after is not None else None
    return [_estimate(before, name), _estimate(after, name), signed(gain) if gain is not None else "-"]


def _estimate(policy: Policy | None, name: str) -> str:
    interval = policy.estimate(name) if policy is not None else None
    if interval is None:
        return "-"
    return f"{interval.mean:.3f}" if interval.n < 2 else f"{interval.mean:.3f} ± {interval.half_width:.3f}"


def _use(card: Card) -> str:
    config = card.config
    if not card.adapters:
        load = [
            "from transformers import AutoModelForCausalLM, AutoTokenizer",
            "",
            f'model = AutoModelForCausalLM.from_pretrained("{card.name}")',
        ]
    else:
        load = [
            "from peft import PeftModel",
            "from transformers import AutoModelForCausalLM, AutoTokenizer",
            "",
            f'base = AutoModelForCausalLM.from_pretrained("{card.base or "BASE"}")',
            f'model = PeftModel.from_pretrained(base, "{card.name}")',
        ]
    code = "\n".join(["```python", *load, f'tokenizer = AutoTokenizer.from_pretrained("{card.name}")', "```"])
    sampling = (
        f"Rollouts were sampled at temperature {config.temperature:g} from the whole distribution, up to "
        f"{config.max_tokens:,} tokens."
    )
    return f"{code}\n\n{sampling}" if card.adapters else f"{code}\n\n{sampling} `generation_config.json` says the same."


def _settings(config: TrainingConfig) -> Iterator[list[str]]:
    builder = config.active_builder
    values: dict[str, object] = {
        "loss_fn": config.trainer().recipe.name,
        "learning_rate": config.learning_rate,
        "optimizer.lr_schedule": config.optimizer.lr_schedule,
        "batch_size": builder.batch_size,
        "group_size": builder.group_size,
        "num_substeps": config.num_substeps,
        "rollout_epochs": config.rollout_epochs,
        "max_steps_off_policy": config.max_steps_off_policy,
        "kl_penalty_coef": config.kl_penalty_coef,
        "mode": config.mode,
        "max_tokens": config.max_tokens,
        "temperature": config.temperature,
        "lora_rank": config.lora_rank,
        "local.dtype": config.local.dtype,
        "sft.num_steps": config.sft.num_steps,
        "seed": config.seed,
    }
    for name, value in values.items():
        yield [f"`{name}`", f"{value:g}" if isinstance(value, float) else str(value)]


def _versions(code: Mapping[str, Json]) -> Iterator[list[str]]:
    for name, version in (code.get("packages") or {}).items():
        if version is not None:
            yield [str(name), str(version)]
    if code.get("python"):
        yield ["python", str(code["python"])]
    if git := code.get("git"):
        yield ["commit", f"{git.get('commit')}{' with changes' if git.get('dirty') else ''}"]


def _table(heading: Sequence[str], rows: Iterator[list[str]] | Sequence[list[str]]) -> list[str]:
    lines = ["| " + " | ".join(heading) + " |", "|" + " --- |" * len(heading)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |" for row in rows]
    return ["\n".join(lines)]
