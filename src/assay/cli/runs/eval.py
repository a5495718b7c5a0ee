"""`assay eval`: measure a checkpoint of a run, an endpoint, or a folder of kernels; nothing measured is touched."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from assay.cli.options import add_config, add_settings_help, config_of
from assay.cli.runs.eval_settings import CHANGED_MOST, NOT_READ, OF_ENDPOINT, refuse_idle
from assay.cli.runs.eval_table import table
from assay.cli.runs.measured import HELDOUT, Measured, Which, check_places, measured_of, play, write
from assay.envs.base import build_data
from assay.errors import ConfigError
from assay.storage.files import encode_json
from assay.training.config import TrainingConfig
from assay.training.metrics.progress import RunProgress
from assay.training.run.checkpoints import checkpoint_folder, open_checkpoint
from assay.training.run.reader import find_checkpoint
from assay.training.session import open_policy
from assay.types import Json

EXAMPLES = """\
policies (--policy):
  endpoint:URL#MODEL   an OpenAI-compatible endpoint: endpoint:http://localhost:8000/v1#Qwen/Qwen3-8B
  folder:DIR           kernels in KernelBench's own run layout, graded by Assay
  results:DIR          the eval_results.json of such a run, at its word

examples:
  assay eval --run runs/kernels --output after.json
  assay eval --policy endpoint:https://api.openai.com/v1#gpt-4o-mini --config rl_kernelbench endpoint.budget_usd=5 ...
  assay eval --policy results:runs/mine --eager-times baseline_time_torch.json dataset_builder.level=1"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    whose = parser.add_mutually_exclusive_group(required=True)
    whose.add_argument("--run", type=Path, metavar="DIR", help="run directory (`log_path` of the run)")
    whose.add_argument("--policy", metavar="KIND:WHAT", help="a policy that no run trained: see below")
    parser.add_argument("--batch", type=int, metavar="N", help="checkpoint after N RL batches (default: the last one)")
    add_config(parser)
    parser.add_argument(
        "--tasks",
        choices=("heldout", "all"),
        help="tasks to measure on: held-out ones (default), or all (default of folder: and results:)",
    )
    parser.add_argument(
        "--k", type=_ks, default=(), metavar="K,...", help="k of pass@k (default: powers of 2 up to the samples)"
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="also write everything, sample by sample, as JSON")
    parser.add_argument("--tensorboard", type=Path, metavar="DIR", help="also write the figures as a TensorBoard file")
    parser.add_argument(
        "--step", type=int, default=0, metavar="N", help="with --tensorboard: at this step (default: 0)"
    )
    parser.add_argument(
        "--kernels", type=Path, metavar="DIR", help="also write each sample's kernel, in KernelBench's run layout"
    )
    for name, words in (("eager", "eager PyTorch"), ("compile", "torch.compile")):
        parser.add_argument(
            f"--{name}-times", type=Path, metavar="FILE", help=f"with results: KernelBench's times of {words}"
        )
    add_settings_help(
        parser,
        "assay.training.endpoint.config:EvaluationConfig",
        (*CHANGED_MOST, *OF_ENDPOINT),
        "Any other setting of the run that an evaluation reads can be given too: `assay settings` shows all,\n"
        f"and `assay settings endpoint` those of endpoints.\n\n{EXAMPLES}",
    )


def _ks(text: str) -> tuple[int, ...]:
    """`1,5,10`."""
    try:
        found = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        found = ()
    if not found or found[0] < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers from 1, such as 1,5,10")
    return found


def run(args: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Measure, and print the figures as JSON; in a terminal the main ones below it, too."""
    _refuse_strays(args)
    check_places(args.output, args.tensorboard, args.kernels)
    if args.policy is None:
        refuse_idle(overrides, NOT_READ)
        which = Which(args.tasks or "heldout", args.k)
        measured = asyncio.run(measure_run(args.run, config_of(args.run, overrides), args.batch, which))
    else:
        from assay.cli.runs.eval_policies import measure_policy

        measured = measure_policy(args, overrides)
    write(measured, args.output, args.tensorboard, args.step, args.kernels)
    print(encode_json(measured.report, indent=2).decode(), flush=True)
    if sys.stderr.isatty():
        print(table(measured.report), file=sys.stderr)
    return 0


def _refuse_strays(args: argparse.Namespace) -> None:
    kind = (args.policy or "run").partition(":")[0]
    beside: Mapping[str, tuple[str, ...]] = {
        "batch": ("run",),
        "config": ("endpoint", "folder", "results"),
        "eager_times": ("results",),
        "compile_times": ("results",),
        "kernels": ("run", "endpoint"),
    }
    for name, kinds in beside.items():
        if getattr(args, name) not in (None, []) and kind not in kinds:
            shown = " or ".join("--run" if one == "run" else f"--policy {one}:" for one in kinds)
            raise ConfigError(f"--{name.replace('_', '-')} would have no effect here: it is for {shown}. Remove it.")
    if args.step and args.tensorboard is None:
        raise ConfigError("--step would have no effect without --tensorboard. Remove it, or give --tensorboard DIR.")


def measure(run: Path, config: TrainingConfig, batch: int | None) -> Mapping[str, Json]:
    """Evaluate the checkpoint of RL batch `batch` (the last checkpoint by default) on the held-out tasks.

    Args:
        run: run directory.
        config: the run's config, possibly with other settings of evaluation.

    Returns:
        JSON data: run, checkpoint, tasks, samples_per_task, and per metric `mean`, `low`, `high` (95 %, over tasks),
        with the environment's baseline policies beside them.

    Raises:
        RunDirectoryError: no such run or checkpoint.
        TrainingError: too many rollouts could not be scored, or the sampler is not the policy that is trained.
    """
    return asyncio.run(measure_run(run, config, batch)).report


async def measure_run(run: Path, config: TrainingConfig, batch: int | None, which: Which = HELDOUT) -> Measured:
    """`measure`, with the rollouts behind it."""
    checkpoint = open_checkpoint(checkpoint_folder(run, find_checkpoint(run, batch)))
    with RunProgress() as progress, progress.building() as show:
        data = build_data(config.active_builder, config.build_context(show))
    try:
        backend, renderer = await open_policy(config, data, checkpoint)
        try:
            tasks = which.of(data, config.eval.max_tasks)
            evaluation = await play(config, backend, renderer, tasks, config.grpo.parity)
        finally:
            await backend.close()
        policies = {"policy": evaluation.per_task}
        if data.baseline_policies is not None and config.eval.max_tasks is None and which == HELDOUT:
            policies |= await data.baseline_policies()
    finally:
        await data.close()
    head: dict[str, Json] = {"run": str(run), "checkpoint": checkpoint.name}
    return measured_of(head, config, evaluation, policies, which.ks)
