import asyncio
import json
import logging
import os
import signal
import tempfile
import time
from pathlib import Path

import pytest

from assay.errors import CheckpointError, RunDirectoryError
from assay.training.run.directory import RunDirectory
from assay.training.run.resume import Refusal, ResumePlan, config_changes, nothing_may_change, plan_resume
from support.toy_run import CONFIG, MAY_CHANGE, RL_STEPS, SFT_STEPS, content, in_child, open_run, run_toy


async def save_nothing(path: Path) -> None:
    path.mkdir()


def edit(path: Path, **changes) -> None:
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, **changes}))


def refused(path: Path, match: str, config=CONFIG, error=RunDirectoryError, **options) -> None:
    """Opening must fail with that message and change nothing."""
    before = content(path) if path.is_dir() else path
    with pytest.raises(error, match=match):
        open_run(path, config, **options)
    assert (content(path) if path.is_dir() else path) == before


def test_a_new_run_writes_its_settings_and_what_code_ran(tmp_path):
    with open_run(tmp_path / "deep" / "run", {"path": Path("a"), "pair": (1, 2)}) as run:
        assert run.resumed is None
        assert run.next_step == -1
        assert not run.is_complete
        assert json.loads((run.path / "config.json").read_text()) == {"path": "a", "pair": [1, 2]}
        code = json.loads((run.path / "code.json").read_text())
    assert {"assay-rl", "torch", "transformers", "peft", "chess", "numpy"} <= code["packages"].keys()
    assert os.uname().nodename not in json.dumps(code)


def test_a_stopped_run_goes_on_from_its_last_checkpoint(tmp_path):
    run_toy(tmp_path / "run", stop_after=SFT_STEPS + 3)
    with open_run(tmp_path / "run", CONFIG) as run:
        assert run.resumed is not None
        assert (run.resumed.name, run.resumed.step, run.resumed.batch) == ("rl_000002", SFT_STEPS + 1, 2)
        assert run.next_step == SFT_STEPS + 2
        assert [commit.checkpoint for commit in run.checkpoints] == ["start", "sft_000002", "rl_000002"]
        assert run.load_checkpoint(run.checkpoints[0]).step == -1


def test_the_ledger_has_one_line_per_step_and_names_every_sink(tmp_path):
    run_toy(tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run/ledger.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(-1, SFT_STEPS + RL_STEPS + 1))
    assert [line["phase"] for line in lines] == ["start"] + ["sft"] * SFT_STEPS + ["rl"] * RL_STEPS + ["end"]
    assert [line["index"] for line in lines[1:-1]] == [*range(SFT_STEPS), *range(RL_STEPS)]
    for name, size in lines[-1]["sinks"].items():
        assert (tmp_path / "run" / name).stat().st_size == size
    assert set(lines[0]["sinks"]) == {"metrics.jsonl", "traces.jsonl", "tokens.jsonl", "events.jsonl"}
    assert lines[-1]["done"] is True


def test_the_index_of_checkpoints_lists_those_of_the_ledger(tmp_path):
    run_toy(tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run/checkpoints.jsonl").read_text().splitlines()]
    assert [(line["name"], line["batch"]) for line in lines] == [("start", 0), ("sft_000002", 0), ("rl_000002", 2)]
    assert all((tmp_path / "run" / line["path"]).is_dir() for line in lines)


def test_a_complete_run_says_so_and_is_left_alone(tmp_path):
    run_toy(tmp_path / "run")
    before = content(tmp_path / "run")
    with open_run(tmp_path / "run", CONFIG) as run:
        assert run.is_complete
        assert run.resumed is None
        with pytest.raises(ValueError, match="complete"):
            asyncio.run(run.commit("rl", 9))
        with pytest.raises(ValueError, match="complete"):
            run.finish()
    assert content(tmp_path / "run") == before


def test_resume_from_batch_goes_back_and_the_run_ends_the_same(tmp_path):
    run_toy(tmp_path / "run")
    before = content(tmp_path / "run")
    with open_run(tmp_path / "run", CONFIG, resume_from_batch=0) as run:
        assert run.resumed is not None
        assert run.resumed.name == "sft_000002"
        assert not run.is_complete
    assert not (tmp_path / "run/report.html").exists()
    assert not (tmp_path / "run/checkpoints/rl_000002").exists()
    run_toy(tmp_path / "run")
    assert content(tmp_path / "run") == before


def test_resume_from_a_batch_without_checkpoint_lists_those_that_have_one(tmp_path):
    run_toy(tmp_path / "run")
    refused(tmp_path / "run", r"no checkpoint of RL batch 7.*: 0, 2\.", resume_from_batch=7)


def test_resume_from_batch_needs_a_run(tmp_path):
    with pytest.raises(RunDirectoryError, match=r"resume_from_batch=3, but .* has no run"):
        open_run(tmp_path / "run", CONFIG, resume_from_batch=3)
    assert not (tmp_path / "run").exists()
    open_run(tmp_path / "run", CONFIG).close()
    refused(tmp_path / "run", r"has no run to resume. Remove resume_from_batch to start one", resume_from_batch=3)


def test_other_settings_are_refused_naming_each_difference(tmp_path):
    run_toy(tmp_path / "run", stop_after=1)
    other = {"learning_rate": 1e-3, "dataset_builder": {"sizes": [1], "new": True}}
    refused(
        tmp_path / "run",
        r"(?s)dataset_builder.new: absent -> true.*dataset_builder.sizes: \[1,2\] -> \[1\].*"
        r"learning_rate: 0.0001 -> 0.001.*Set log_path to a new directory",
        config=other,
    )


def test_settings_that_change_nothing_computed_may_differ(tmp_path):
    run_toy(tmp_path / "run", stop_after=1)
    config = {
        **CONFIG,
        "log_path": "elsewhere",
        "wandb_name": "x",
        "wandb_project": "p",
        "resume_from_batch": 0,
        "cache_dir": "/x",
    }
    with open_run(tmp_path / "run", CONFIG) as run:
        first = run.run_id
    with open_run(tmp_path / "run", config) as run:
        assert run.run_id == first


def test_where_a_judge_is_and_what_it_may_cost_may_differ_and_who_it_is_may_not():
    def config(model="m", base_url="a", budget=1):
        judge = {"model": model, "base_url": base_url}
        return {"dataset_builder": {"judge": judge, "engine": {"budget_usd": budget}}}

    assert config_changes(config(), config(base_url="b", budget=2), MAY_CHANGE) == []
    assert config_changes(config(), config(model="n"), MAY_CHANGE) == ['dataset_builder.judge.model: "m" -> "n"']
    assert config_changes({"judge": {"base_url": 1}}, {"judge": {"base_url": 2}}, MAY_CHANGE) == [
        "judge.base_url: 1 -> 2"
    ]


def test_the_plan_is_asked_which_settings_may_change(tmp_path):
    run_toy(tmp_path / "run", stop_after=1)
    other = {**CONFIG, "learning_rate": 1, "log_path": "elsewhere"}
    plan = plan_resume(tmp_path / "run", other, may_change=lambda key: key == "learning_rate")
    assert isinstance(plan, Refusal)
    assert plan.changes == ['log_path: "runs/toy" -> "elsewhere"']
    plan = plan_resume(tmp_path / "run", other, may_change=lambda key: key in ("learning_rate", "log_path"))
    assert isinstance(plan, ResumePlan)
    assert plan.run_id != plan_resume(tmp_path / "run", CONFIG).run_id, "the learning rate is said to decide nothing"


def test_a_plan_says_what_would_be_done_and_changes_nothing(tmp_path):
    path = tmp_path / "run"
    plan = plan_resume(path, CONFIG)
    assert isinstance(plan, ResumePlan)
    assert (plan.kept, plan.checkpoint, plan.is_complete) == (0, None, False)
    assert not path.exists()
    run_toy(path, stop_after=SFT_STEPS + 3)
    (path / "run.lock").unlink()
    before = content(path)
    plan = plan_resume(path, CONFIG)
    assert isinstance(plan, ResumePlan)
    assert plan.checkpoint is not None and plan.checkpoint.name == "rl_000002"
    assert [commit.step for commit in plan.content.commits[plan.kept :]] == [SFT_STEPS + 2]
    back = plan_resume(path, CONFIG, resume_from_batch=0)
    assert isinstance(back, ResumePlan)
    assert [commit.checkpoint for commit in back.commits] == ["start", None, "sft_000002"]
    assert content(path) == before and not (path / "run.lock").exists()


def test_a_plan_that_was_overtaken_is_made_anew(tmp_path):
    early = plan_resume(tmp_path / "run", CONFIG)
    run_toy(tmp_path / "run", stop_after=1)
    with RunDirectory.open(early) as run:
        assert run.resumed is not None and run.resumed.name == "start"
    early = plan_resume(tmp_path / "run", CONFIG)
    run_toy(tmp_path / "run", stop_after=SFT_STEPS + 3)
    with RunDirectory.open(early) as run:
        assert run.next_step == SFT_STEPS + 2
    early = plan_resume(tmp_path / "other", {})
    run_toy(tmp_path / "other", stop_after=1)
    before = content(tmp_path / "other")
    with pytest.raises(RunDirectoryError, match="other settings"):
        RunDirectory.open(early)
    assert content(tmp_path / "other") == before


def test_a_nested_key_is_not_free_to_differ_because_of_its_name(tmp_path):
    open_run(tmp_path / "run", {"a": {"log_path": 1}}).close()
    run_toy(tmp_path / "other", stop_after=0)
    refused(tmp_path / "other", "a.log_path: absent -> 2", config={**CONFIG, "a": {"log_path": 2}})


def test_an_entry_of_a_mapping_that_was_not_set_is_said_to_be_that() -> None:
    def said(before: dict[str, str], now: dict[str, str]) -> list[str]:
        return config_changes({"actions": before, "c": {}}, {"actions": now, "c": {}}, nothing_may_change)

    assert said({}, {"mismatch": "ignore"}) == ['actions.mismatch: absent -> "ignore"']
    assert said({"mismatch": "ignore"}, {}) == ['actions.mismatch: "ignore" -> absent']
    assert said({"mismatch": "warn"}, {"mismatch": "ignore"}) == ['actions.mismatch: "warn" -> "ignore"']
    assert said({}, {}) == []


def test_a_resume_that_sets_an_entry_of_a_mapping_is_told_to_leave_it_out(tmp_path: Path) -> None:
    run_toy(tmp_path / "run", stop_after=0)
    refused(tmp_path / "run", r"a\.b: absent -> 1\n.*it was not set, so leave it out", config={**CONFIG, "a": {"b": 1}})


def test_a_run_without_any_commit_starts_afresh_under_new_settings(tmp_path):
    open_run(tmp_path / "run", {"a": 1}).close()
    (tmp_path / "run/metrics.jsonl").write_text("left over\n")
    (tmp_path / "run/checkpoints/start.tmp").mkdir(parents=True)
    with open_run(tmp_path / "run", {"a": 2}) as run:
        assert run.next_step == -1
    assert json.loads((tmp_path / "run/config.json").read_text()) == {"a": 2}
    assert not (tmp_path / "run/metrics.jsonl").exists()
    assert not (tmp_path / "run/checkpoints/start.tmp").exists()


def test_other_versions_are_a_warning_that_names_both(tmp_path, caplog):
    run_toy(tmp_path / "run", stop_after=1)
    code = json.loads((tmp_path / "run/code.json").read_text())
    edit(tmp_path / "run/code.json", packages={**code["packages"], "numpy": "1.0.0"}, python="3.0.0")
    with caplog.at_level(logging.WARNING), open_run(tmp_path / "run", CONFIG):
        pass
    assert f"numpy: 1.0.0 -> {code['packages']['numpy']}" in caplog.text
    assert "python: 3.0.0 -> 3." in caplog.text
    assert "not guaranteed to equal" in caplog.text


def test_equal_versions_are_no_warning(tmp_path, caplog):
    run_toy(tmp_path / "run", stop_after=1)
    with caplog.at_level(logging.WARNING), open_run(tmp_path / "run", CONFIG):
        pass
    assert caplog.text == ""


def test_a_directory_of_something_else_is_refused(tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/thesis.tex").write_text("years of work")
    refused(tmp_path / "notes", r"not a run directory and not empty \(it holds thesis.tex\).*new or empty directory")


def test_a_model_folder_with_a_config_json_of_its_own_is_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "code.json").write_text("{}")
    refused(tmp_path, "not a run directory")


def test_a_file_in_place_of_the_directory_is_refused(tmp_path):
    (tmp_path / "run").write_text("x")
    refused(tmp_path / "run", "is a file, and a run needs a directory")
    refused(tmp_path / "run" / "below", "Cannot write the run directory .*Set log_path")


def test_an_unreadable_ledger_is_refused(tmp_path):
    run_toy(tmp_path / "run")
    lines = (tmp_path / "run/ledger.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "run/ledger.jsonl").write_bytes(b"".join([lines[0], b"garbage\n", *lines[1:]]))
    refused(tmp_path / "run", r"ledger.jsonl is damaged: line 2 is unreadable.*nothing was changed.*new directory")


def test_an_unreadable_config_is_refused(tmp_path):
    run_toy(tmp_path / "run")
    (tmp_path / "run/config.json").write_text('{"learning')
    refused(tmp_path / "run", r"config.json cannot be read, so it is unknown which run this is")


@pytest.mark.parametrize("name", ["metrics.jsonl", "traces.jsonl"])
def test_a_sink_that_lost_records_is_refused(tmp_path, name):
    run_toy(tmp_path / "run", stop_after=3)
    data = (tmp_path / "run" / name).read_bytes()
    (tmp_path / "run" / name).write_bytes(data[:20])
    refused(tmp_path / "run", rf"{name} is damaged: it has only 20 bytes, but held \d+ bytes at step 1")
    (tmp_path / "run" / name).unlink()
    refused(tmp_path / "run", rf"{name} is damaged: it is missing")


def test_a_damaged_checkpoint_is_refused_and_an_earlier_one_can_be_used(tmp_path):
    run_toy(tmp_path / "run")
    before = content(tmp_path / "run")
    with open_run(tmp_path / "run", CONFIG, resume_from_batch=2):
        pass
    (tmp_path / "run/checkpoints/rl_000002/policy/weights.bin").write_bytes(b"short")
    refused(
        tmp_path / "run",
        r"rl_000002/policy/weights.bin has 5 bytes instead of 64 bytes.*Nothing was changed.*resume_from_batch=0",
        error=CheckpointError,
    )
    with open_run(tmp_path / "run", CONFIG, resume_from_batch=0) as run:
        assert run.resumed is not None
        assert run.resumed.name == "sft_000002"
    run_toy(tmp_path / "run")
    assert content(tmp_path / "run") == before


def test_a_deleted_checkpoint_is_refused_naming_it(tmp_path):
    run_toy(tmp_path / "run", stop_after=1)
    (tmp_path / "run/checkpoints/start").rename(tmp_path / "gone")
    refused(
        tmp_path / "run", r"checkpoints/start does not exist.*set log_path to a new directory", error=CheckpointError
    )


def test_a_second_process_is_refused_naming_the_first_until_that_dies(tmp_path):
    path = tmp_path / "run"
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        run = open_run(path, CONFIG)
        os.write(write, b"open")
        signal.pause()
        os._exit(len(run.commits))
    try:
        assert os.read(read, 4) == b"open"
        with pytest.raises(RunDirectoryError, match=rf"in use by process {child},.*another directory"):
            open_run(path, CONFIG)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    open_run(path, CONFIG).close()


def test_a_lock_that_a_killed_process_left_to_what_it_was_starting_is_waited_for(tmp_path):
    path = tmp_path / "run"
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        open_run(path, CONFIG)
        if os.fork() == 0:
            os.write(write, b"open")
            time.sleep(0.3)
            os._exit(0)
        signal.pause()
    os.close(write)
    assert os.read(read, 4) == b"open"
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    open_run(path, CONFIG).close()
    assert os.read(read, 4) == b"", "the other process had not ended, so the lock was not waited for"


def test_a_failed_opening_releases_the_lock(tmp_path):
    run_toy(tmp_path / "run", stop_after=1)
    refused(tmp_path / "run", r"other settings(.*\n)*.*then use the one that began the run", config={})
    open_run(tmp_path / "run", CONFIG).close()


def test_a_directory_that_may_not_be_written_is_refused():
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        path = Path(folder) / "run"
        run_toy(path, stop_after=1)
        os.chmod(path, 0o555)
        os.chmod(path / "run.lock", 0o444)

        def as_ordinary_user() -> None:
            if os.getuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            refused(path, r"Cannot write the run directory at .*: Permission denied.*Set log_path")
            refused(path / "new", r"Cannot write the run directory at .*: Permission denied")

        assert in_child(as_ordinary_user) == 0
        os.chmod(path, 0o755)


def test_commits_out_of_order_or_without_a_state_are_refused(tmp_path):
    with open_run(tmp_path / "run", CONFIG) as run:
        for call in (
            run.commit("rl", 0, save=save_nothing, state={}),
            run.commit("start", 0),
            run.commit("start", 0, save=save_nothing),
        ):
            with pytest.raises(ValueError, match=r"cannot commit|needs"):
                asyncio.run(call)
        with pytest.raises(ValueError, match="cannot finish"):
            run.finish()
        asyncio.run(run.commit("start", 0, save=save_nothing, state={}))
        with pytest.raises(ValueError, match="cannot commit phase 'start' as step 0"):
            asyncio.run(run.commit("start", 0, save=save_nothing, state={}))


def test_a_failing_save_leaves_no_checkpoint_and_the_step_uncommitted(tmp_path):
    async def fail(path: Path) -> None:
        path.mkdir()
        raise RuntimeError("no gradient")

    with open_run(tmp_path / "run", CONFIG) as run:
        with pytest.raises(RuntimeError, match="no gradient"):
            asyncio.run(run.commit("start", 0, save=fail, state={}))
        assert run.next_step == -1
        assert list((tmp_path / "run/checkpoints").iterdir()) == []


def test_a_sink_that_a_resume_would_not_cut_back_is_refused(tmp_path):
    class Stray:
        files = (tmp_path / "run" / "notes.jsonl",)

        def flush(self, *, durable: bool) -> None: ...

        def close(self) -> None: ...

    with open_run(tmp_path / "run", CONFIG) as run, pytest.raises(ValueError, match=r"notes.jsonl is not one of"):
        run.attach(Stray())


def test_files_that_are_not_the_runs_survive_a_resume(tmp_path):
    run_toy(tmp_path / "run", stop_after=3)
    (tmp_path / "run/my_notes.jsonl").write_text("kept")
    (tmp_path / "run/checkpoints/my_copy").mkdir()
    open_run(tmp_path / "run", CONFIG).close()
    assert (tmp_path / "run/my_notes.jsonl").read_text() == "kept"
    assert (tmp_path / "run/checkpoints/my_copy").is_dir()
