"""Functions that hang, die or cannot be found, in worker processes that can be killed."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import assay
from assay.errors import ConfigError, RewardError
from assay.rewards import EngineConfig, FunctionReward, JudgeConfig, RewardEngine, Sample
from assay.rewards.functions import processes
from assay.rewards.functions.options import FunctionOptions
from assay.rewards.named import find_reward
from assay.types import Score

FILE = """
import os, subprocess, sys, time
import assay
from assay.types import Score

def f(completion, answer=None):
    if completion.startswith("hang"):
        child = subprocess.Popen(["sleep", "600"])
        if told := completion[5:]:
            open(told, "w").write(str(child.pid))
        while True:
            time.sleep(1)
    while completion == "spin":
        pass
    if completion == "die":
        os._exit(7)
    if completion == "kill":
        os.kill(os.getpid(), 9)
    if completion == "raise":
        raise ValueError("no good")
    if completion == "exit":
        sys.exit(3)
    if completion == "odd":
        return Odd()
    if completion == "locked":
        return Locked()
    if completion == "deaf":
        os.closerange(3, 256)
        time.sleep(600)
    if completion == "pid":
        return os.getpid()
    if completion == "score":
        return Score("invalid", 0.5, {"p": 1.0})
    if completion == "print":
        print("loud")
    return float(len(completion))

class Odd:
    pass

class Locked:
    def __reduce__(self):
        return int, ("no number",)

async def g(completion):
    return 2

@assay.reward(processes=1)
def many(completions):
    return [os.getpid()] * len(completions)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "slow.py"
    path.write_text(FILE)
    return path


def reward(file: Path, name: str = "f", **options: Any) -> FunctionReward:
    found = find_reward(f"{file}:{name}", options, JudgeConfig())
    assert isinstance(found, FunctionReward)
    return found


@pytest.fixture
def engine(file: Path) -> Iterator[RewardEngine]:
    with RewardEngine(reward(file, timeout_s=1.0, processes=1), config=EngineConfig(max_failure_rate=1.0)) as made:
        yield made


def judged(engine: RewardEngine, *responses: str) -> list[Score]:
    return engine.score_many_sync([Sample(response) for response in responses])


def workers() -> set[int]:
    """Processes of this one that run reward functions."""
    listed = subprocess.run(["ps", "-wweo", "pid,ppid,args"], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in listed.splitlines()]
    return {int(pid) for pid, parent, args in rows[1:] if parent == str(os.getpid()) and "functions.worker" in args}


def gone(pid: int) -> bool:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (ProcessLookupError, FileNotFoundError):
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


def test_only_what_computes_until_its_deadline_earns_on_timeout(file: Path) -> None:
    config = EngineConfig(max_failure_rate=1.0)
    with RewardEngine(reward(file, timeout_s=2.0, on_timeout=-1.0, processes=1), config=config) as made:
        spun, waited, fine = judged(made, "spin", "hang", "abc")
    assert (spun.status, spun.value, spun.evidence["failure"]) == ("invalid", -1.0, "timeout")
    assert (waited.status, waited.evidence["failure"]) == ("errored", "timeout")
    assert fine.value == 3.0
    with pytest.raises(ConfigError, match="on_timeout=nan of a reward function must be a finite number"):
        FunctionOptions(timeout_s=1.0, on_timeout=float("nan"))
    with pytest.raises(ConfigError, match="beside a timeout_s"):
        FunctionOptions(on_timeout=0.0)


def test_what_hangs_dies_or_raises_is_errored_and_others_go_on(engine: RewardEngine) -> None:
    responses = ["abc", "hang", "abcd", "die", "raise", "kill", "exit", "odd", "score", "print"]
    scores = judged(engine, *responses)
    by_response = dict(zip(responses, scores, strict=True))
    assert [by_response[r].value for r in ("abc", "abcd", "score", "print")] == [3.0, 4.0, 0.5, 5.0]
    assert by_response["score"].status == "invalid" and by_response["score"].parts == {"p": 1.0}
    said = {r: by_response[r].evidence for r in ("hang", "die", "raise", "kill", "exit", "odd")}
    assert said["hang"]["failure"] == "timeout"
    assert "f (slow.py) took longer than timeout_s=1" in said["hang"]["message"]
    assert said["die"]["failure"] == "died" and "exit status 7" in said["die"]["message"]
    assert said["kill"]["failure"] == "died" and "SIGKILL" in said["kill"]["message"]
    assert said["raise"]["message"].endswith("slow.py, line 20)")
    assert said["exit"]["message"].endswith("slow.py, line 22)")
    assert "Odd" in said["odd"]["message"]


def test_a_process_is_used_again_and_none_is_left_after_close(file: Path) -> None:
    before = workers()
    with RewardEngine(reward(file, processes=1)) as engine:
        first, second = (score.value for score in judged(engine, "pid", "pid"))
        assert first == second != os.getpid() and workers() - before == {first}
    assert workers() == before
    assert judged(engine, "pid")[0].value != first  # a closed engine begins anew
    engine.close()
    assert workers() == before


def test_whatever_an_answer_does_to_the_pipe_others_are_scored(
    engine: RewardEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "LAST_WORDS_S", 0.05)
    locked, deaf, good = judged(engine, "locked", "deaf", "abc")
    assert locked.evidence["failure"] == "reward" and "cannot hand over: ValueError" in locked.evidence["message"]
    assert deaf.evidence["failure"] == "died" and "closed its pipe" in deaf.evidence["message"]
    assert good.value == 3.0


def test_a_call_that_nobody_waits_for_any_more_gives_its_process_back(file: Path) -> None:
    config = EngineConfig(max_failure_rate=1.0, call_deadline_s=60.0)
    with RewardEngine(reward(file, processes=1), config=config) as engine:
        judged(engine, "warm")
        (hung,) = engine.score_many_sync([Sample("hang")], deadline_s=0.3)
        assert hung.evidence["failure"] == "deadline"
        assert judged(engine, "abc")[0].value == 3.0


def test_a_machine_that_starts_no_process_is_one_error(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: Any, **kwargs: Any) -> Any:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    with RewardEngine(reward(file, processes=1)) as engine:
        monkeypatch.setattr(processes.subprocess, "Popen", refused)
        with pytest.raises(RewardError, match=r"No process for f \(slow.py\) could be started: .*temporarily"):
            judged(engine, "abc")
        monkeypatch.undo()
        assert judged(engine, "abc")[0].value == 3.0


def test_closing_ends_a_call_that_hangs(file: Path) -> None:
    before = workers()
    engine = RewardEngine(reward(file, processes=1), config=EngineConfig(max_failure_rate=1.0))
    judged(engine, "warm")
    failed: list[BaseException] = []

    def host() -> None:
        try:
            judged(engine, "hang", "hang", "x")
        except RewardError as error:
            failed.append(error)

    thread = threading.Thread(target=host)
    thread.start()
    while not engine._flows:
        time.sleep(0.01)
    engine.close()
    thread.join(20)
    assert len(failed) == 1 and "closed" in str(failed[0]) and workers() == before


def test_what_a_function_has_started_is_killed_with_it(engine: RewardEngine, tmp_path: Path) -> None:
    told = tmp_path / "pid"
    (score,) = judged(engine, f"hang {told}")
    assert score.evidence["failure"] == "timeout" and gone(int(told.read_text()))


def test_batch_and_asynchronous_functions_run_there_too(file: Path) -> None:
    with RewardEngine(reward(file, "many")) as engine:
        values = {score.value for score in judged(engine, *"abcdefgh")}
        assert len(values) == 1 and values != {float(os.getpid())}
    with RewardEngine(reward(file, "g", processes=1)) as engine:
        assert judged(engine, "a")[0].value == 2.0


def test_an_asynchronous_function_with_a_timeout_is_cancelled_in_this_process() -> None:
    ended = []

    @assay.reward(timeout_s=0.05)
    async def sleeps(completion: str) -> float:
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.sleep(0), 1)
        try:
            await asyncio.sleep(600)
        finally:
            ended.append(completion)
        return 1.0

    with RewardEngine(FunctionReward(sleeps)) as engine:
        (score,) = judged(engine, "a")
    assert score.evidence["failure"] == "timeout" and "sleeps (test_killable_processes.py)" in score.evidence["message"]
    assert ended == ["a"]


def test_what_a_process_cannot_load_is_one_error(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "fickle.py"
    other.write_text(
        "import sys\nif any('functions.worker' in word for word in sys.orig_argv):\n    raise OSError('gone')\n"
        "def f(completion):\n    return 1\n"
    )
    message = r"f \(fickle.py\) cannot be loaded by the processes.*line 3: OSError: gone"
    with RewardEngine(reward(other, processes=1)) as engine, pytest.raises(ConfigError, match=message):
        judged(engine, "a")


def test_columns_that_cannot_be_sent_and_functions_that_cannot_be_imported(file: Path) -> None:
    with (
        RewardEngine(reward(file, processes=1)) as engine,
        pytest.raises(ConfigError, match="one of its columns cannot be sent"),
    ):
        engine.score_many_sync([Sample("a", ground_truth=lambda: 1)])
    with pytest.raises(ConfigError, match="cannot import a function that was made by code"):
        FunctionReward(lambda completion: 1.0, options=FunctionOptions(timeout_s=1))


def test_a_function_of_a_script_is_not_run_with_the_script(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import assay\nfrom assay.rewards import FunctionReward\n"
        "@assay.reward(timeout_s=1)\ndef f(completion):\n    return 1\n"
        "try:\n    FunctionReward(f)\nexcept ValueError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert "f (train.py) is to run in other processes, which would run your whole script" in done.stdout


def test_a_hanging_process_dies_with_a_parent_that_is_killed(file: Path, tmp_path: Path) -> None:
    told = tmp_path / "pid"
    file.write_text(
        FILE.replace('child = subprocess.Popen(["sleep", "600"])', f"open({str(told)!r}, 'w').write(str(os.getpid()))")
    )
    code = (
        "import sys\nfrom assay.rewards import RewardEngine, Sample\nfrom assay.rewards.config import JudgeConfig\n"
        "from assay.rewards.named import find_reward\n"
        "engine = RewardEngine(find_reward(sys.argv[1], {'processes': 1}, JudgeConfig()))\n"
        "engine.score_many_sync([Sample('hang')])\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, f"{file}:f"])
    while not told.exists() or not told.read_text():
        assert parent.poll() is None
        time.sleep(0.02)
    parent.kill()
    parent.wait()
    assert gone(int(told.read_text()))
