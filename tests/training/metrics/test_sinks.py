import json
import logging
import os
import struct
import subprocess
import sys

import pytest

from assay.errors import MissingDependencyError
from assay.training.config import load_config
from assay.training.metrics import sinks
from assay.training.metrics.logger import MetricsLogger
from assay.training.metrics.sinks import (
    ConsoleSink,
    JsonlSink,
    TensorBoardSink,
    WandbSink,
    is_per_tag,
    writes_tensorboard,
)
from assay.training.metrics.tables import Table, markdown
from assay.training.plan import describe
from assay.training.session import SHOWN
from support.tensorboard import laid_out, read_events, scalars
from support.toy_run import open_run

TABLE = Table(("task", "answer", "reward"), [("a", "<b>|x|</b>", 0.5), ("b", "", None)])
METRICS = {"env/legal": 0.25, "reward/mean": 0.5, "tag/P/white/legal": 1.0}


def test_json_records_are_whole_lines_as_soon_as_they_are_written(tmp_path):
    sink = JsonlSink(tmp_path / "a.jsonl")
    sink.write_records([{"a": 1}, {"a": float("inf")}])
    assert (tmp_path / "a.jsonl").read_text() == '{"a":1}\n{"a":null}\n'
    sink.close()
    sink.close()
    again = JsonlSink(tmp_path / "a.jsonl")
    again.write_records([{"a": 3}])
    again.close()
    assert len((tmp_path / "a.jsonl").read_text().splitlines()) == 3


def test_tensorboard_files_hold_scalars_and_histograms(tmp_path):
    sink = TensorBoardSink(tmp_path / "tensorboard")
    sink.log(3, "rl", 1, METRICS, {"reward": [0.0, 1.0, 1.0, float("nan")], "empty": [], "lost": [float("nan")]})
    sink.close()
    (path,) = sink.files
    first, event = read_events(path)
    assert first.file_version == "brain.Event:2"
    assert scalars(path) == [(3, name, value) for name, value in METRICS.items()]
    (histogram,) = [value for value in event.summary.value if value.HasField("histo")]
    assert (histogram.tag, histogram.histo.num, histogram.histo.sum) == ("reward", 3, 2)


def test_tensorboard_can_leave_out_the_metrics_of_single_tags(tmp_path):
    sink = TensorBoardSink(tmp_path / "tensorboard", per_tag=False)
    sink.log(0, "rl", 0, METRICS, {})
    sink.log(1, "rl", 1, {"tag/P/legal": 1.0}, {})
    sink.close()
    assert [tag for _, tag, _ in scalars(sink.files[0])] == ["env/legal", "reward/mean"]
    assert len(read_events(sink.files[0])) == 2


def test_charts_of_several_scalars_are_laid_out_once_in_a_tensorboard_file(tmp_path):
    charts = {"Eval/All/Overview": ["Eval/All/Pass@1", "Eval/All/Fast1.2x"], "Reward/Summary": ["Reward/Mean"]}
    for _ in range(2):
        sink = TensorBoardSink(tmp_path / "tensorboard", charts=charts)
        sink.close()
    assert laid_out(sink.files[0]) == charts
    assert len(read_events(sink.files[0])) == 2, "a resumed run has its layout already"


def test_the_size_of_a_tensorboard_file_is_the_end_of_a_record_after_every_call(tmp_path):
    sink = TensorBoardSink(tmp_path / "tensorboard")
    for step in range(3):
        sink.log(step, "rl", step, METRICS, {})
        assert len(read_events(sink.files[0])) == step + 2
    sink.close()


def test_tensorboard_readers_find_the_file_by_its_name(tmp_path):
    assert "tfevents" in TensorBoardSink(tmp_path / "tensorboard").files[0].name


async def save(path):
    path.mkdir()


def commit_steps(path, last):
    """A run with TensorBoard whose only checkpoints are at the start and after step 1."""
    import asyncio

    async def work():
        with open_run(path, {}) as run, MetricsLogger(run, [TensorBoardSink(path / "tensorboard")]) as log:
            if run.next_step == -1:
                await run.commit("start", 0, save=save, state={})
            for step in range(run.next_step, last):
                log.log(step, "rl", step, {"reward": step / 4})
                await run.commit("rl", step, save=save if step == 1 else None, state={} if step == 1 else None)

    asyncio.run(work())


def test_a_resumed_run_continues_one_tensorboard_file_without_repeating_a_step(tmp_path):
    commit_steps(tmp_path / "run", 4)
    commit_steps(tmp_path / "run", 6)
    (path,) = (tmp_path / "run/tensorboard").iterdir()
    assert scalars(path) == [(step, "reward", step / 4) for step in range(6)]
    assert len(read_events(path)) == 7, "one header and one event per step"


def test_the_console_shows_the_chosen_metrics_in_one_line(caplog):
    sink = ConsoleSink({"reward/mean": "reward", "missing": "m", "part/": "", "env/legal": "legal"}, {"rl": 60})
    with caplog.at_level(logging.INFO):
        sink.log(14, "rl", 11, {**METRICS, "part/form": 0.75, "part/right": 1.0}, {})
        sink.log(15, "rl", 12, {"other": 1.0}, {})
        sink.table(15, "completions", TABLE)
    assert [record.getMessage() for record in caplog.records] == [
        "rl 12/60  reward 0.5  form 0.75  right 1  legal 0.25"
    ]


def test_the_console_leads_with_the_reward_its_parts_and_the_speed():
    assert list(SHOWN)[:3] == ["reward/mean", "part/", "perf/sampled_tokens_per_s"]


def test_tensorboard_holds_tables_as_text_between_whole_records(tmp_path):
    sink = TensorBoardSink(tmp_path / "tensorboard")
    sink.table(3, "completions", TABLE)
    sink.log(3, "rl", 1, METRICS, {})
    sink.close()
    _, event, _ = read_events(sink.files[0])
    (value,) = event.summary.value
    assert (event.step, value.tag) == (3, "completions/text_summary")
    assert value.metadata.plugin_data.plugin_name == "text"
    assert value.tensor.string_val[0].decode() == markdown(TABLE)


def test_tensorboard_is_written_where_it_is_installed_unless_a_run_says(tmp_path, monkeypatch):
    assert [writes_tensorboard(enabled) for enabled in (None, True, False)] == [True, True, False]
    monkeypatch.setattr(sinks, "find_spec", lambda name: None)
    assert [writes_tensorboard(enabled) for enabled in (None, True, False)] == [False, True, False]
    with pytest.raises(MissingDependencyError, match=r"pip install '\.\[tensorboard\]'.*tensorboard_enabled=false"):
        TensorBoardSink(tmp_path / "tensorboard")
    assert "no TensorBoard files (tensorboardX is not installed" in describe(load_config(None), 1, 1)


def wandb_records(path):
    """Records of an offline W&B file: a header, then 32 KiB blocks of (crc, length, type, data), as in LevelDB."""
    data, position, chunks = path.read_bytes(), 7, []
    while position + 7 <= len(data):
        left_in_block = 32768 - position % 32768
        if left_in_block < 7:
            position += left_in_block
            continue
        length, kind = struct.unpack("<HB", data[position + 4 : position + 7])
        chunks.append(data[position + 7 : position + 7 + length])
        position += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            yield b"".join(chunks)
            chunks = []


def wandb_rows(folder):
    """Step and metrics of every history row in the offline files of a run directory, in the order of its sessions."""
    from wandb.proto import wandb_internal_pb2

    rows, ids = [], set()
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        for data in wandb_records(path):
            record = wandb_internal_pb2.Record.FromString(data)
            if record.WhichOneof("record_type") == "history":
                items = {
                    (item.key or ".".join(item.nested_key)): json.loads(item.value_json) for item in record.history.item
                }
                rows.append((items["_step"], {k: v for k, v in items.items() if not k.startswith("_")}))
            elif record.WhichOneof("record_type") == "run":
                ids.add(record.run.run_id)
    return rows, ids


def test_a_resumed_wandb_run_is_the_same_run_and_is_told_every_step_once(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    for first, last in ((-1, 3), (1, 5)):
        sink = WandbSink(tmp_path, project="p", name="n", config={"a": 1})
        for step in range(first, last):
            sink.log(step, "rl", step, {"env/legal": step / 4}, {})
            sink.log(step, "rl", step, {"eval/legal": 1.0}, {})
            sink.table(step, "completions", TABLE)
            sink.flush(durable=False)
        sink.close()
        sink.close()
        wandb.teardown()  # as a process does at its end; a run that resumes is another process
    rows, ids = wandb_rows(tmp_path)
    assert ids == {sink.id}
    assert [step for step, _ in rows] == list(range(6))
    assert {name: value for name, value in rows[3][1].items() if not name.startswith("completions")} == {
        "rl/index": 2,
        "env/legal": 0.5,
        "eval/legal": 1.0,
    }
    tables = [[row[f"completions.{name}"] for name in ("_type", "nrows", "ncols")] for _, row in rows]
    assert tables == [["table-file", 2, 3]] * 6
    (first, *_) = sorted(tmp_path.glob("wandb/offline-run-*/files/media/table/*.json"))
    assert json.loads(first.read_text()) == {"columns": list(TABLE.columns), "data": [list(r) for r in TABLE.rows]}


def test_wandb_that_is_not_installed_is_named_with_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingDependencyError, match=r"pip install '\.\[wandb\]'.*wandb_project=null"):
        WandbSink(tmp_path, project="p", name=None, config={})
    assert list(tmp_path.iterdir()) == []


def test_wandb_without_a_login_says_what_to_do(tmp_path):
    pytest.importorskip("wandb")
    program = (
        "import sys; from pathlib import Path; from assay.errors import ConfigError\n"
        "from assay.training.metrics.sinks import WandbSink\n"
        "try: WandbSink(Path(sys.argv[1]), project='p', name=None, config={})\n"
        "except ConfigError as error: print(error)\n"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith("WANDB")} | {
        "HOME": str(tmp_path),
        "NETRC": str(tmp_path / "netrc"),
        "WANDB_BASE_URL": "http://127.0.0.1:9",
    }
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert "Weights & Biases refused the run" in done.stdout, done.stderr
    assert "set WANDB_MODE=offline" in done.stdout


def test_large_figures_have_no_exponent_on_the_console(caplog: pytest.LogCaptureFixture) -> None:
    sink = ConsoleSink({"speed": "tokens/s", "loss": "loss", "huge": "huge"}, {})
    with caplog.at_level("INFO"):
        sink.log(0, "rl", 0, {"speed": 13214.6, "loss": -0.067351, "huge": 1e12}, {})
    assert caplog.messages == ["rl 1  tokens/s 13,215  loss -0.06735  huge 1e+12"]


@pytest.mark.parametrize("name", ["tag/a/reward", "eval/tag/a/reward", "eval/tag/a/count"])
def test_metrics_of_single_tags_are_those_of_evaluations_too(name: str) -> None:
    assert is_per_tag(name)
    assert not is_per_tag("eval/reward/mean") and not is_per_tag("env/tag/x")
