"""Which checkpoints a run keeps, and that a kill while others are removed loses nothing."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.envs.base import build_data
from assay.errors import ConfigError, HealthError, RunDirectoryError
from assay.grpo.config import AlgorithmConfig
from assay.grpo.health.config import HealthConfig
from assay.grpo.health.monitor import HealthMonitor
from assay.training.config import SFTConfig
from assay.training.run.ledger import live_checkpoints, read_ledger
from assay.training.run.reader import best_checkpoint, find_checkpoint
from assay.training.run.retention import Keep, Saved, refuges, superfluous
from assay.training.session import check_data, retention
from support.tiny_run import assert_same_run, kill, outcome, read_lines, run, tiny

NO_SFT = SFTConfig(num_steps=0)


def saved(*values: float | None, unsafe: tuple[int, ...] = ()) -> list[Saved]:
    return [Saved(str(i), i, i not in unsafe, value) for i, value in enumerate(values)]


@pytest.mark.parametrize(
    ("keep", "gone"),
    [
        (Keep(), ""),
        (Keep(last=1), "123"),
        (Keep(last=3), "1"),
        (Keep(last=9), ""),
        (Keep(best=1), "123"),
        (Keep(best=2), "12"),
        (Keep(last=2, best=1), "12"),
        (Keep(last=1, ahead=2), "13"),
        (Keep(best=4), "2"),
    ],
)
def test_the_newest_and_the_best_are_kept(keep: Keep, gone: str) -> None:
    assert "".join(superfluous(saved(0.9, 0.1, None, 0.5, 0.2), keep)) == gone


def test_of_equal_values_the_later_is_kept_and_what_is_not_finite_is_no_value() -> None:
    assert superfluous(saved(0.5, 0.5, float("nan"), 0.1, 0.1), Keep(best=1)) == ["2", "3"]


def test_what_a_rollback_goes_back_to_stays() -> None:
    assert superfluous(saved(0, 0, 0, 0, 0, unsafe=(2, 3, 4)), Keep(last=1)) == ["2", "3"]
    assert superfluous(saved(0, 9, 0, 0, 0, unsafe=(1, 4)), Keep(last=1, best=1)) == ["2"]
    assert superfluous(saved(0, 0, 0, 0, 0, 0, 0, unsafe=(3,)), Keep(last=1, window=3)) == ["1", "3"]


def numbers(found: list[Saved]) -> str:
    return " ".join(s.name for s in found)


def test_a_rollback_goes_to_before_the_trouble_and_not_to_what_failed_before() -> None:
    there = saved(0, 0, 0, 0, 0, 0, 0, 0, unsafe=(4,))
    now = Saved("now", 7, False)
    assert numbers(refuges(there, now, 7)) == "7 6 5 3 2 1 0"
    assert numbers(refuges(there, now, 4)) == "3 2 1 0", "the newest before the trouble that nothing speaks against"
    assert numbers(refuges(there, now, -5)) == "0"
    again = Saved("now", 7, False, rolled_back_at=4, went_to=2)
    assert numbers(refuges(there, again, 6)) == "6 5 0", "what came before the last rollback led to it"
    assert numbers(refuges(there, again, 4)) == "0"
    assert numbers(refuges(there, again, 4, own_step=True)) == "2 0"
    assert numbers(refuges([Saved("start", 0, True), Saved("sft", 0, True)], now, 0)) == "sft"


STATES = st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(0, 25)), min_size=1, max_size=30)


@given(STATES, st.integers(1, 3), st.integers(0, 6))
def test_a_rollback_is_the_same_however_few_are_kept(
    rows: list[tuple[bool, bool, int]], last: int, window: int
) -> None:
    """A run with rollbacks at any time, of any reach within the window, beside one that keeps all its checkpoints."""
    every, few = [Saved("0", 0, True)], [Saved("0", 0, True)]
    back = went_to = 0
    for batch, (healthy, alarm, far) in enumerate(rows, start=1):
        if alarm:
            now, reach = Saved("", batch - 1, False, None, back, went_to), far % (window + 1)
            choice = refuges(every, now, batch - 1 - reach, own_step=not reach)[0]
            assert refuges(few, now, batch - 1 - reach, own_step=not reach)[0] == choice
            back, went_to = batch, choice.batch
        one = Saved(str(batch), batch, healthy or alarm, None, back, went_to)
        every, few = [*every, one], [*few, one]
        gone = superfluous(few, Keep(last=last, window=window))
        few = [s for s in few if s.name not in gone]
        assert len(few) <= 2 * last + window + 3


@given(
    st.lists(st.tuples(st.booleans(), st.none() | st.floats()), min_size=1, max_size=12),
    st.builds(Keep, st.none() | st.integers(1, 4), st.none() | st.integers(1, 4), st.just(""), st.integers(0, 3)),
)
def test_as_a_run_goes_on_whatever_it_needs_is_there(rows: list[tuple[bool, float | None]], keep: Keep) -> None:
    there: list[Saved] = []
    for batch, (refuge, value) in enumerate(rows):
        before = list(there)
        there.append(Saved(str(batch), batch, refuge, value))
        gone = superfluous(there, keep)
        there = [s for s in there if s.name not in gone]
        assert there[-1].name == str(batch), "a resume needs it"
        assert superfluous(there, keep) == [], "nothing goes without a new checkpoint"
        for one in there:
            safe = [s for s in [*before, there[-1]] if s.refuge and s.batch <= one.batch]
            assert not safe or safe[-1] in there, "a rollback needs it"
            assert not before or before[0] in there, "so is what RL began with"
        if keep.last is None and keep.best is None:
            assert not gone


def folders(path: Path) -> list[str]:
    return sorted(p.name for p in (path / "checkpoints").iterdir())


def test_a_run_keeps_what_was_asked_for_and_the_rest_of_it_is_as_ever(tmp_path: Path) -> None:
    run(tiny(tmp_path / "all", eval_every=2))
    run(tiny(tmp_path / "run", eval_every=2, keep_last=1))
    assert folders(tmp_path / "run") == ["rl_000006", "sft_000006"]
    assert [line["name"] for line in read_lines(tmp_path / "run" / "checkpoints.jsonl")] == ["sft_000006", "rl_000006"]
    pruned, whole = outcome(tmp_path / "run"), outcome(tmp_path / "all")
    for part in ("metrics", "events"):
        assert pruned[part] == whole[part]
    assert pruned["checkpoints"].items() <= whole["checkpoints"].items()


def test_the_best_are_those_of_the_best_metric(tmp_path: Path) -> None:
    for metric in ("eval/reward/mean", "train/grad_norm"):
        path = tmp_path / metric.replace("/", "_")
        run(tiny(path, eval_every=1, save_every=1, keep_best=2, best_metric=metric, sft=NO_SFT))
        values = {r["index"] + 1: r[metric] for r in read_lines(path / "metrics.jsonl") if r["phase"] == "rl"}
        two = sorted(values, key=lambda batch: (values[batch], batch))[-2:]
        start = read_lines(path / "metrics.jsonl")[0].get(metric, -1)
        wanted = {f"rl_{batch:06d}" for batch in two if values[batch] >= start} | {"rl_000006"}
        # Beside the best: the start, the newest, and the newest that a rollback may go to.
        assert wanted <= set(folders(path)) and len(folders(path)) <= 5


def test_the_best_by_what_is_never_measured_is_refused(tmp_path: Path) -> None:
    config = tiny(tmp_path / "run", keep_best=1, best_metric="eval/reward/mena")
    with pytest.raises(
        ConfigError, match=r"best_metric=eval/reward/mena is not measured, .*Did you mean eval/reward/mean"
    ):
        run(config)
    message = r"best_metric=reward/meen is not measured, .*Did you mean reward/mean\?"
    with pytest.raises(ConfigError, match=message):
        run(tiny(tmp_path / "other", keep_best=1, best_metric="reward/meen"))


def test_a_resumed_run_keeps_the_same_ones(tmp_path: Path) -> None:
    changes = {"keep_last": 1, "keep_best": 1, "eval_every": 1, "save_every": 1}
    run(tiny(tmp_path / "reference", **changes))
    config = tiny(tmp_path / "run", **changes)
    for bomb in (
        ("assay.training.run.directory", "RunDirectory._remove", 1),
        ("assay.training.run.directory", "remove", 2),
        ("assay.training.run.directory", "write_checkpoint", 3),
        ("assay.grpo.trainer", "GRPOTrainer.update", 2),
    ):
        kill(config, *bomb)
    run(config)
    assert_same_run(tmp_path / "run", tmp_path / "reference")


def test_a_rollback_finds_its_checkpoint_however_few_are_kept(tmp_path: Path) -> None:
    health = HealthConfig(entropy_floor=50.0, actions={"entropy_floor": "rollback"}, max_rollbacks=3)
    found = []
    for name, changes in (("all", {}), ("one", {"keep_last": 1})):
        path = tmp_path / name
        with pytest.raises(HealthError, match="stopped after step"):
            run(tiny(path, grpo=AlgorithmConfig(health=health), save_every=1, **changes))
        found.append([(e["step"], e["message"]) for e in read_lines(path / "events.jsonl") if e["kind"] == "rollback"])
    assert found[0] == found[1] and len(found[0]) == 3
    assert len(folders(tmp_path / "one")) < len(folders(tmp_path / "all"))


def test_a_removed_checkpoint_cannot_be_gone_back_to_and_the_message_says_which_can(tmp_path: Path) -> None:
    config = tiny(tmp_path / "run", keep_last=2)
    run(config)
    with pytest.raises(RunDirectoryError, match=r"no checkpoint of RL batch 2 .*Batches with a checkpoint: 0, 4, 6\."):
        run(tiny(tmp_path / "run", keep_last=2, resume_from_batch=2))
    kill(tiny(tmp_path / "run", keep_last=2, resume_from_batch=4), "assay.grpo.trainer", "GRPOTrainer.update", 2)
    run(config)
    assert folders(tmp_path / "run") == ["rl_000004", "rl_000006", "sft_000006"]


def test_a_run_that_went_back_lists_no_checkpoint_that_it_had_removed(tmp_path: Path) -> None:
    changes = {"keep_last": 2, "save_every": 1, "eval_every": 1}
    config, path = tiny(tmp_path / "run", **changes), tmp_path / "run"
    run(config)
    back = tiny(path, **changes, resume_from_batch=5)
    kill(back, "assay.grpo.trainer", "GRPOTrainer.update", 1)  # the step that removed batch 4's is cut away again
    assert [line["name"] for line in read_lines(path / "checkpoints.jsonl")] == ["sft_000006", "rl_000005"]
    with pytest.raises(RunDirectoryError, match=r"no checkpoint of RL batch 4; it has 0, 5\."):
        find_checkpoint(path, 4)
    for sign in (1, -1):  # whichever batch it prefers
        rows = [{**row, "liked": sign * row["step"]} for row in read_lines(path / "metrics.jsonl")]
        (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        assert best_checkpoint(path, "liked").batch == (5 if sign > 0 else 0)


def test_what_is_gone_is_gone_for_the_ledger_too(tmp_path: Path) -> None:
    changes = {"keep_last": 2, "save_every": 1}
    run(tiny(tmp_path / "run", **changes))
    run(tiny(tmp_path / "run", **changes, resume_from_batch=5))
    saved = live_checkpoints(read_ledger(tmp_path / "run" / "ledger.jsonl").commits)
    assert sorted(str(commit.checkpoint) for commit in saved) == folders(tmp_path / "run")
    assert folders(tmp_path / "run") == ["rl_000005", "rl_000006", "sft_000006"]


@pytest.mark.parametrize(
    ("name", "possible"),
    [
        *((name, True) for name in ("eval/reward/mean", "reward/mean", "eval/env/legal", "eval/tag/P/legal", "part/x")),
        *((name, True) for name in ("train/kl_div", "eval/ci95/reward", "eval/parity/kl", "sft/loss")),
        *(
            (name, False)
            for name in ("eval/foo", "foo", "eval/", "eval/env/", "train/kl", "eval/train/kl_div", "part/")
        ),
    ],
)
def test_a_best_metric_that_no_run_measures_is_refused_before_a_start(name: str, possible: bool) -> None:
    config = tiny(Path("nowhere"), keep_best=1, best_metric=name)
    data = build_data(config.active_builder, config.build_context())
    if possible:
        assert check_data(config, data).metric == name
    else:
        with pytest.raises(ConfigError, match=f"best_metric={name} is not measured"):
            check_data(config, data)


def test_what_a_collapsed_policy_goes_back_to_stays(tmp_path: Path) -> None:
    """Its trouble began before the steps over which it is found, which are more than the window."""
    config = tiny(tmp_path, keep_last=1)
    monitor, steps = HealthMonitor(config.grpo.health), 40
    collapsed = {"entropy": 0.01, "rollout/constant_group_fraction": 1.0, "reward/mean": 0.5}
    findings = [finding for _ in range(steps) for finding in monitor.observe(collapsed)]
    assert any(finding.rule == "policy_collapse" for finding in findings)
    limit = monitor.last_good(findings)
    keep = retention(config, build_data(config.active_builder, config.build_context()))
    every = saved(*[0.0] * steps)  # a checkpoint after each step but the one that is judged
    gone = superfluous(every, keep)
    now = Saved("now", steps - 1, False)
    assert refuges([s for s in every if s.name not in gone], now, limit)[0] == refuges(every, now, limit)[0]
