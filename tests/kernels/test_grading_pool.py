"""Many candidates at a time: nothing graded twice, kept that says nothing, read too early, or left behind.

Scheduling is tested with a grader that waits when it is told to; one test runs the real one.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import chz
import pytest

from assay.config.schema import settings
from assay.errors import AssayError, CacheError, ConfigError, SandboxError
from assay.kernels import config, verdict_cache
from assay.kernels.config import GPU_VERDICT, VERDICT, GraderConfig
from assay.kernels.grader import VERSION, Grader
from assay.kernels.pool import AHEAD, GradingPool, GradingProgress, grade_many
from assay.kernels.problems.scaling import scale, task_key, unscaled
from assay.kernels.problems.sources import SHIPPED, Problem, make_problem
from assay.kernels.program.jobs import RECORD, REPLAY
from assay.kernels.verdict_cache import NOT_KEPT, VerdictCache, cache_key
from assay.kernels.verdicts import KINDS, Verdict
from support.grading_services import StubGrader
from support.kernel_graders import QUICK, Bench
from support.kernelbench_data import TINY, shipped

VERDICT_FIELDS = [name for name, setting in settings(GraderConfig).items() if VERDICT in setting.marks]
DEVICE_FIELDS = [name for name, setting in settings(GraderConfig).items() if GPU_VERDICT in setting.marks]
PROBLEM = make_problem(1, 1, "tiny", TINY, "test")
OTHER = make_problem(1, 2, "other", TINY + "\n# another\n", "test")


def with_pool(
    body: Callable[[GradingPool, StubGrader], Awaitable[None]], config: GraderConfig | None = None, width: int = 2
) -> StubGrader:
    """Run a test with a pool over a stub; checks that nothing of it stays."""

    async def main() -> StubGrader:
        stub = StubGrader(width)
        before = asyncio.all_tasks()
        async with GradingPool(config or stub.config, cast(Grader, stub)) as pool:
            await body(pool, stub)
        assert asyncio.all_tasks() == before and stub.running == 0 and stub.closed == 1
        return stub

    return asyncio.run(main())


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def cached(path: Path, **changes: Any) -> GraderConfig:
    return GraderConfig(cache=True, cache_path=str(path / "kernels.sqlite"), **changes)


def test_the_same_candidate_is_graded_once_at_a_time() -> None:
    async def body(pool: GradingPool, stub: StubGrader) -> None:
        stub.gate.clear()
        waiting = [asyncio.create_task(pool.grade(PROBLEM, "ok a")) for _ in range(5)]
        waiting += [asyncio.create_task(pool.grade(p, c)) for p, c in ((OTHER, "ok a"), (PROBLEM, "ok b"))]
        await settle()
        assert sorted(stub.started) == ["ok a", "ok a", "ok b"]
        stub.gate.set()
        verdicts = await asyncio.gather(*waiting)
        assert [v.message for v in verdicts] == ["ok a"] * 6 + ["ok b"] and not any(v.cached for v in verdicts)
        assert pool.counters() == {"graded": 3, "shared": 4, "ok": 7}
        await pool.grade(PROBLEM, "ok a")
        assert len(stub.started) == 4, "without a cache, what is over is graded again"

    with_pool(body)


@pytest.mark.parametrize("candidate", [None, "code", (None, "code"), 3])
def test_what_is_no_candidate_is_named(candidate: Any) -> None:
    with pytest.raises(ConfigError, match=r"candidate 0 .* Pass \(problem, code\)"):
        grade_many([candidate])


def test_a_waiter_that_is_cancelled_disturbs_no_other() -> None:
    async def body(pool: GradingPool, stub: StubGrader) -> None:
        stub.gate.clear()
        first, second = (asyncio.create_task(pool.grade(PROBLEM, "ok a")) for _ in range(2))
        await settle()
        first.cancel()
        await settle()
        assert first.cancelled() and not second.done()
        stub.gate.set()
        assert (await second).ok and stub.started == ["ok a"]

    with_pool(body)


def test_a_grade_that_nobody_waits_for_is_cancelled() -> None:
    async def body(pool: GradingPool, stub: StubGrader) -> None:
        stub.gate.clear()
        waiting = [asyncio.create_task(pool.grade(PROBLEM, "ok a")) for _ in range(2)]
        await settle()
        for waiter in waiting:
            waiter.cancel()
        await settle()
        assert stub.running == 0 and not pool._flights
        stub.gate.set()
        assert (await pool.grade(PROBLEM, "ok a")).ok and stub.started == ["ok a"] * 2, "it can be asked for again"

    with_pool(body)


def test_closing_ends_what_is_under_way() -> None:
    async def body(pool: GradingPool, stub: StubGrader) -> None:
        stub.gate.clear()
        waiting = asyncio.create_task(pool.grade(PROBLEM, "ok a"))
        await settle()
        await pool.close()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        stub.closed -= 1  # twice is safe; the context manager is the second

    with_pool(body)


def test_a_kept_verdict_is_found_again(tmp_path: Path) -> None:
    async def fill(pool: GradingPool, stub: StubGrader) -> None:
        for kind in KINDS:
            await pool.grade(PROBLEM, kind)

    async def ask(pool: GradingPool, stub: StubGrader) -> None:
        for kind in KINDS:
            verdict = await pool.grade(PROBLEM, kind)
            assert verdict == Verdict(kind, "numerics", kind, problem=PROBLEM.hash, cached=kind not in NOT_KEPT)
        assert pool.counters() == {"cached": len(KINDS) - 2, "graded": 2, **dict.fromkeys(KINDS, 1)}

    with_pool(fill, cached(tmp_path))
    assert with_pool(ask, cached(tmp_path)).started == [k for k in KINDS if k in ("timeout", "infra_error")]


def test_a_kept_verdict_is_found_by_other_processes(tmp_path: Path) -> None:
    config = cached(tmp_path)
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from assay.kernels.verdict_cache import VerdictCache\n"
        "from assay.kernels.verdicts import Verdict\n"
        "cache = VerdictCache(Path(sys.argv[1]), 16)\ncache.put(sys.argv[2], Verdict('wrong', 'numerics', 'theirs'))\n"
        "cache.close()"
    )
    key = cache_key(task_key(PROBLEM, config.scale), "ok a", config, VERSION)
    subprocess.run([sys.executable, "-c", code, str(config.cache_path), key], check=True)

    async def body(pool: GradingPool, stub: StubGrader) -> None:
        verdict = await pool.grade(PROBLEM, "ok a")
        assert (verdict.kind, verdict.message, verdict.cached) == ("wrong", "theirs", True)

    assert with_pool(body, config).started == []


def other_value(name: str, value: Any) -> Any:
    choices = {
        "backend": "cuda", "precision": "float16", "scale": "none", "policy": "partial", "compile_check": "all",
        "arch": "sm_80", "sandbox": "unsafe",
    }  # fmt: skip
    return choices.get(name) or value + 1


def test_the_key_has_everything_that_decides_a_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "nvidia_devices", lambda: ("/dev/nvidia0",))
    base = GraderConfig()
    gpu = chz.replace(base, device="cuda", scale="none")
    keys = {"": cache_key(PROBLEM.hash, "code", base, "1")}
    keys["device"] = cache_key(PROBLEM.hash, "code", gpu, "1")
    timed = chz.replace(gpu, measure_performance=True)
    keys["measure_performance"] = cache_key(PROBLEM.hash, "code", timed, "1")
    assert cache_key(PROBLEM.hash, "code", GraderConfig(), "1") == keys[""]
    for name in set(VERDICT_FIELDS) - keys.keys():
        changed = chz.replace(base, **{name: other_value(name, getattr(base, name))})
        keys[name] = cache_key(PROBLEM.hash, "code", changed, "1")
    keys["problem"] = cache_key(OTHER.hash, "code", base, "1")
    keys["code"] = cache_key(PROBLEM.hash, "code ", base, "1")
    keys["surrogate"] = cache_key(PROBLEM.hash, "\ud800", base, "1")
    keys["surrogate2"] = cache_key(PROBLEM.hash, "\ud801", base, "1")
    keys["version"] = cache_key(PROBLEM.hash, "code", base, "2")
    monkeypatch.setattr(verdict_cache, "_installed", lambda package: f"{package} 99")
    keys["packages"] = cache_key(PROBLEM.hash, "code", base, "1")
    assert len(set(keys.values())) == len(keys)


def test_every_setting_is_in_the_key_or_known_to_decide_nothing() -> None:
    nothing = {
        "url",
        "url_timeout_s",
        "url_in_flight",
        "workers",
        "draws",
        "uses_per_draw",
        "max_prepared",
        "cache",
        "cache_path",
        "cache_mb",
    }
    apart = {"baselines", "timing", "modal"}
    assert set(settings(GraderConfig)) == {*VERDICT_FIELDS, *DEVICE_FIELDS} | nothing | apart


def test_settings_that_decide_nothing_share_the_cache(tmp_path: Path) -> None:
    config = cached(tmp_path)
    for name, value in (("workers", 3), ("draws", 9), ("cache_mb", 1)):
        changed = chz.replace(config, **{name: value})
        assert cache_key("p", "c", changed, "1") == cache_key("p", "c", config, "1")


def test_a_size_of_the_callers_choice_is_another_problem(tmp_path: Path) -> None:
    problem = shipped()["1/1"]
    scaled, whole = scale(problem, cap=16), unscaled(problem)
    assert scaled.hash != problem.hash

    async def body(pool: GradingPool, stub: StubGrader) -> None:
        await pool.grade(scaled, "ok")
        await pool.grade(problem, "ok")
        await pool.grade(whole, "ok")

    assert len(with_pool(body, cached(tmp_path, scale="fit")).started) == 3


AS_A_REPLY = json.dumps([json.dumps(Verdict("ok", "numerics").to_json()), "stop", "", 0, 0])
"""How an older version kept a verdict."""
UNREADABLE = ["", "no json", "[]", "3", "{}", '{"kind": "better"}', '{"kind": "ok", "colour": 3}', AS_A_REPLY]


@pytest.mark.parametrize("text", UNREADABLE)
def test_a_row_that_is_no_verdict_is_graded_again(tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture) -> None:
    config = cached(tmp_path)

    async def body(pool: GradingPool, stub: StubGrader) -> None:
        key = cache_key(task_key(PROBLEM, config.scale), "wrong", config, VERSION)
        assert pool._cache is not None
        pool._cache._store.put([(key, text.encode())])
        assert (await pool.grade(PROBLEM, "wrong")).kind == "wrong"
        assert (await pool.grade(PROBLEM, "wrong")).cached

    assert with_pool(body, config).started == ["wrong"]
    assert caplog.text.count("cannot read") == 1


def test_a_damaged_file_is_moved_aside(tmp_path: Path) -> None:
    config = cached(tmp_path)
    Path(str(config.cache_path)).write_bytes(b"this is no database" * 1000)

    async def body(pool: GradingPool, stub: StubGrader) -> None:
        assert not (await pool.grade(PROBLEM, "ok")).cached
        assert (await pool.grade(PROBLEM, "ok")).cached

    with_pool(body, config)


def test_a_cache_that_cannot_be_opened_says_how_to_do_without(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CacheError, match="cache=false"):
        GradingPool(cached(tmp_path / "file"), cast(Grader, SimpleNamespace(as_configured=True)))


def test_a_cache_keeps_what_a_verdict_says(tmp_path: Path) -> None:
    verdict = Verdict(
        "wrong", "numerics", "m\ud800", "", {"a": [1, {"b": 2.5}]}, 1, 5, True, {"s": 1.0}, "p", False, 0.5
    )
    cache = VerdictCache(tmp_path / "c.sqlite", 4)
    cache.put("k", verdict)
    assert cache.get("k") == replace(verdict, cached=True) and cache.get("other") is None
    cache.close()
    cache.close()


def test_a_stream_reads_only_so_far_ahead() -> None:
    read: list[int] = []

    def source(count: int) -> Iterator[tuple[Problem, str]]:
        for number in range(count):
            read.append(number)
            yield PROBLEM, f"ok {number}"

    async def body(pool: GradingPool, stub: StubGrader) -> None:
        stub.gate.clear()
        stream = pool.stream(source(1000), ahead=5)
        first = asyncio.ensure_future(anext(stream))
        await settle()
        assert len(read) == 5 == len(stub.started)
        stub.gate.set()
        seen = [(await first)[0]]
        async for place, verdict in stream:
            assert verdict.message == f"ok {place}"
            seen.append(place)
            assert len(read) <= len(seen) + 10 and len(pool._flights) <= 5
        assert sorted(seen) == list(range(1000)) and stub.peak <= 5

    with_pool(body)


def test_how_far_a_stream_reads_follows_from_the_workers() -> None:
    async def body(pool: GradingPool, stub: StubGrader) -> None:
        stub.gate.clear()
        reading = asyncio.create_task(pool.grade_many((PROBLEM, f"ok {n}") for n in range(100)))
        await settle()
        assert len(stub.started) == 3 * AHEAD
        stub.gate.set()
        assert len(await reading) == 100

    with_pool(body, width=3)


def test_a_stream_that_is_left_early_ends_what_it_started() -> None:
    async def body(pool: GradingPool, stub: StubGrader) -> None:
        stream = pool.stream(((PROBLEM, f"ok {n}") for n in range(100)), ahead=4)
        async for _ in stream:
            stub.gate.clear()
            break
        await stream.aclose()

    assert len(with_pool(body).started) < 12


def test_grade_many_keeps_the_order_and_tells_progress() -> None:
    said: list[tuple[int, int, dict[str, int]]] = []

    async def body(pool: GradingPool, stub: StubGrader) -> None:
        codes = [f"{'ok' if n % 3 else 'wrong'} {n % 7}" for n in range(30)]

        def progress(now: GradingProgress) -> None:
            said.append((now.done, now.cached, dict(now.kinds)))

        verdicts = await pool.grade_many([(PROBLEM, code) for code in codes], progress)
        assert [v.message for v in verdicts] == codes
        assert await pool.grade_many([]) == []

    with_pool(body)
    assert [done for done, _, _ in said] == list(range(1, 31)) and said[-1][2] == {"ok": 20, "wrong": 10}


def test_progress_in_words() -> None:
    progress = GradingProgress()
    for kind in ("ok", "ok", "crash"):
        progress.add(Verdict(cast(Any, kind), "numerics", cached=kind == "crash"))
    assert str(progress).startswith("3 graded (") and str(progress).endswith("1 from the cache): ok 2, crash 1")


def test_a_grader_that_cannot_work_stops_the_batch() -> None:
    async def body(pool: GradingPool, stub: StubGrader) -> None:
        codes = ["ok 1", "raise", *(f"ok {n}" for n in range(2, 50))]
        with pytest.raises(SandboxError, match="cannot isolate"):
            await pool.grade_many([(PROBLEM, code) for code in codes])
        with pytest.raises(SandboxError):
            await pool.grade(PROBLEM, "raise")
        assert (await pool.grade(PROBLEM, "ok again")).ok

    with_pool(body)


def test_a_source_that_raises_reaches_the_caller() -> None:
    def source() -> Iterator[tuple[Problem, str]]:
        yield PROBLEM, "ok 1"
        raise RuntimeError("the data set ended badly")

    async def body(pool: GradingPool, stub: StubGrader) -> None:
        with pytest.raises(RuntimeError, match="ended badly"):
            await pool.grade_many(source())

    with_pool(body)


def test_grade_many_inside_a_loop_is_an_error() -> None:
    async def main() -> None:
        grade_many([(PROBLEM, "x")], QUICK)

    with pytest.raises(AssayError, match=r"inside a running event loop.*GradingPool\.grade_many"):
        asyncio.run(main())


def test_the_real_grader_in_a_pool(bench: Bench, tmp_path: Path) -> None:
    config = chz.replace(QUICK, cache=True, cache_path=str(tmp_path / "kernels.sqlite"))
    jobs: list[str] = []

    class Counting:
        width = 1

        async def run(self, job: Any, after_round: Any = None) -> Any:
            jobs.append(job.harness)
            return await bench.sandbox.run(job, after_round)

        async def close(self) -> None:
            raise AssertionError("whoever passes one closes it")

    small = make_problem(
        1, 1, "small", TINY.replace("batch_size = 64\nfeatures = 4096", "batch_size = 8\nfeatures = 48"), ""
    )
    right = (Path(__file__).parent / "test_grader.py").read_text(encoding="utf-8").partition('CANDIDATE = """')[2]
    right = right.partition('"""')[0].replace("BODY", "v = tl.maximum(v, 0.0) * scale").replace("RESULT", "out")
    right = right.replace("INIT", "pass").replace("HOST", "pass")
    batch = [(small, code) for code in (right, "x = 1", right, right.replace("scale\n", "scale + 1\n", 1), right)]

    async def main() -> list[Verdict]:
        grader = Grader(config, sandbox=Counting(), reference=bench.reference)
        async with GradingPool(config, grader) as pool:
            verdicts = await pool.grade_many(batch)
            counts = pool.counters()
            assert counts["graded"] == 3 and counts["shared"] + counts.get("cached", 0) == 2
            return [*verdicts, await pool.grade(*batch[0])]

    verdicts = bench.wait(main())
    assert [v.kind for v in verdicts] == ["ok", "compile_error", "ok", "wrong", "ok", "ok"], verdicts
    assert sorted(jobs) == sorted([RECORD] * 3 + [REPLAY] * 2) and verdicts[-1].cached
    assert json.loads(json.dumps(verdicts[-1].to_json()))["cached"] is True


def test_a_copy_of_a_shipped_problem_has_a_verdict_of_its_own(tmp_path: Path) -> None:
    """It is made smaller, so that another kernel may be right there, whichever of the two is graded first."""

    async def at_a_time(pool: GradingPool, stub: StubGrader) -> None:
        stub.gate.clear()
        problems = (replace(PROBLEM, source=SHIPPED), PROBLEM)
        waiting = [asyncio.create_task(pool.grade(each, "ok a")) for each in problems]
        await settle()
        stub.gate.set()
        assert not any(verdict.cached for verdict in await asyncio.gather(*waiting))
        assert stub.started == ["ok a"] * 2
        assert all([(await pool.grade(each, "ok a")).cached for each in problems])

    with_pool(at_a_time, cached(tmp_path))
