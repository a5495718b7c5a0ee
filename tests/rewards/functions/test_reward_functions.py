"""A plain function as a reward: what it is called with, what it may return, and what becomes of its mistakes."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import assay
from assay.errors import AssayError, ConfigError, DataError, RewardError
from assay.rewards import CombinedReward, EngineConfig, FunctionReward, JudgeConfig, RewardEngine, Sample
from assay.rewards.base import Reply
from assay.rewards.functions.arguments import available
from assay.rewards.named import find_reward, find_rewards
from assay.types import Message, Score
from support.host_rewards import ShareOfWords

CONFIG = EngineConfig(max_failure_rate=1.0)


def scored(reward: Any, *samples: Sample) -> list[Score]:
    reward = reward if hasattr(reward, "fingerprint") else FunctionReward(reward)
    with RewardEngine(reward, JudgeConfig(api_key_env="NO_SUCH_KEY"), CONFIG) as engine:
        return engine.score_many_sync(samples)


def one(function: Any, response: str = "4", **sample: Any) -> Score:
    return scored(function, Sample(response, **sample))[0]


def message_of(score: Score) -> str:
    assert score.status == "errored"
    return str(score.evidence["message"])


def test_a_function_takes_what_it_names() -> None:
    seen: dict[str, Any] = {}

    def everything(completion, prompt, messages, answer, ground_truth, data_source, level, extra_info, x=7):  # type: ignore[no-untyped-def] # fmt: skip
        seen.update(locals())
        return 1

    prompt = (Message("system", "s"), Message("user", "u"))
    sample = Sample("c", ground_truth=4, data_source="d", prompt=prompt, extra={"level": 3})
    assert one(everything, "c", ground_truth=4, data_source="d", prompt=prompt, extra={"level": 3}).value == 1.0
    seen.pop("seen", None)
    assert seen == {
        "completion": "c", "prompt": "system: s\n\nuser: u", "answer": 4, "ground_truth": 4,
        "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}],
        "data_source": "d", "level": 3, "extra_info": {"level": 3}, "x": 7,
    }  # fmt: skip
    assert available(sample)["solution_str"] == available(sample)["response"] == "c"


def test_a_column_stands_for_the_ground_truth_where_the_host_has_none() -> None:
    assert one(lambda completion, answer: completion == answer, extra={"answer": "4"}).value == 1.0
    assert one(lambda completion, answer: completion == answer, ground_truth="4", extra={"answer": "no"}).value == 1.0
    assert one(lambda completion, **rest: rest["answer"] + rest["n"], ground_truth=1, extra={"n": 2}).value == 3.0


def test_a_column_is_never_mistaken_for_another_of_a_similar_name() -> None:
    both = {"answer": "a", "ground_truth": "g", "answers": "all", "data_source": "d", "extra_info": {"index": 3}}
    seen: dict[str, Any] = {}

    def single(completion, answer, ground_truth, answers, data_source, extra_info):  # type: ignore[no-untyped-def]
        seen.update(answer=answer, ground_truth=ground_truth, answers=answers, data_source=data_source)
        return extra_info["index"]

    def batch(completions, answer, ground_truth, answers, data_source, extra_info):  # type: ignore[no-untyped-def]
        seen.update(answer=answer[0], ground_truth=ground_truth[0], answers=answers[0], data_source=data_source[0])
        return [info["index"] for info in extra_info]

    for function in (single, batch):
        seen.clear()
        assert one(function, extra=both).value == 3.0
        assert seen == {name: both[name] for name in seen} and len(seen) == 4
    with pytest.raises(ConfigError, match="takes both `completion` and `response`"):
        FunctionReward(lambda completion, response: 1.0)


@pytest.mark.parametrize("returned", [0.5, 1, True, np.float32(0.5), np.int64(2), np.bool_(True), np.array(3)])
def test_numbers_and_truth_values_are_rewards(returned: Any) -> None:
    assert one(lambda completion: returned).value == float(returned)


def test_a_score_is_passed_on_and_none_is_no_zero() -> None:
    given = Score("invalid", -1.0, {"format": 0.0})
    score = one(lambda completion: given)
    assert (score.status, score.value, score.parts) == ("invalid", -1.0, {"format": 0.0})
    nothing = one(lambda completion: None)
    assert (nothing.status, nothing.value, nothing.evidence["failure"]) == ("errored", None, "unscored")


def test_a_sum_that_is_no_usable_reward_is_one_errored_sample() -> None:
    def huge(completion: str) -> float:
        return 1e15 if completion == "huge" else 1.0

    both = scored(CombinedReward([(FunctionReward(huge), 10.0)]), Sample("huge"), Sample("x"))
    assert (
        "the weighted sum of huge=1e+15 is 1e+16; a reward is finite and at most 1e+15" in message_of(both[0])
        and both[1].value == 10.0
    )


@pytest.mark.parametrize(
    "returned", ["0.5", math.nan, math.inf, 1e300, [1.0], {"score": 1.0}, np.array([1.0, 2.0]), 1j]
)
def test_anything_else_names_function_file_and_value(returned: Any) -> None:
    def odd(completion: str) -> Any:
        return returned

    message = message_of(one(odd))
    assert "odd (test_reward_functions.py) returned" in message and "\n" not in message
    assert (repr(returned) if isinstance(returned, str) else str(returned)[:3]) in message


def test_an_int_beyond_all_floats_is_refused_in_one_short_line() -> None:
    message = message_of(one(lambda completion: -(10**400)))
    assert "returned -inf. A reward must be finite" in message and len(message) < 200


def test_an_exception_is_one_line_with_the_line_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import json\ndef helper(text):\n    return json.loads(text)\n\n"
        "def f(completion):\n    return helper(completion)\n"
        "async def g(completion):\n    return 1 / 0\n"
    )
    message = message_of(one(find_reward(f"{file}:f", {}, JudgeConfig()), "{"))
    assert message.startswith("json.decoder.JSONDecodeError: ") and message.endswith("/mine.py, line 3)")
    assert message_of(one(find_reward(f"{file}:g", {}, JudgeConfig()))) == (
        f"ZeroDivisionError: division by zero ({file}, line 8)"
    )


def test_a_missing_column_ends_the_batch_and_says_what_there_is() -> None:
    def f(completion: str, level: int) -> float:
        return 1.0

    with pytest.raises(DataError, match=r"f \(test_reward_functions.py\) takes `level`.*completion, data_source.*rank"):
        one(f, extra={"rank": 1})


def test_asynchronous_functions_are_awaited_side_by_side() -> None:
    both = threading.Barrier(2)

    async def f(completion: str) -> float:
        await asyncio.to_thread(both.wait, 30)  # passes only where two calls are under way at once
        return float(completion)

    assert [score.value for score in scored(f, Sample("1"), Sample("2"))] == [1.0, 2.0]


def test_plain_functions_are_called_one_after_another_outside_the_engines_loop() -> None:
    inside = []

    def f(completion: str) -> bool:
        inside.append(threading.current_thread().name)
        assert len(set(inside)) == 1
        return inside[0] not in ("MainThread", "assay-rewards")

    assert {score.value for score in scored(f, *[Sample(str(i)) for i in range(50)])} == {1.0}


def test_a_batch_function_is_given_lists_of_what_it_names() -> None:
    calls = []

    def f(prompts: list[str], completions: list[str], answer: list[int], **rest: list[Any]) -> list[float | None]:
        calls.append(len(completions))
        assert len(prompts) == len(answer) == len(rest["level"]) == len(completions)
        return [None if c == "x" else float(a) for c, a in zip(completions, answer, strict=True)]

    samples = [
        Sample("x" if i == 3 else "c", i, prompt=(Message("user", "q"),), extra={"level": 1} if i else {})
        for i in range(40)
    ]
    values = [score.value for score in scored(f, *samples)]
    assert values == [None if i == 3 else float(i) for i in range(40)]
    assert sum(calls) == 40 and len(calls) < 40


@pytest.mark.parametrize(
    ("returned", "message"),
    [([1.0], "was given 3 completions and returned 1 rewards"), ("abc", "must return a list"), (1.0, "return a list")],
)
def test_a_batch_function_that_answers_otherwise_is_one_error(returned: Any, message: str) -> None:
    def f(completions: list[str]) -> Any:
        return returned

    with pytest.raises(RewardError, match=rf"f \(test_reward_functions.py\).*{message}"):
        scored(f, Sample("a"), Sample("b"), Sample("c"))


def test_arrays_and_odd_entries_of_a_batch() -> None:
    assert [s.value for s in scored(lambda completions: np.array([0.5, 1.0]), Sample("a"), Sample("b"))] == [0.5, 1.0]
    good, bad = scored(lambda completions: [1.0, "no"], Sample("a"), Sample("b"))
    assert good.value == 1.0 and "'no'" in message_of(bad)


def test_no_function_is_a_reward_without_a_completion() -> None:
    def positional(completion: str, /) -> float:
        return 1.0

    for function, message in [
        (lambda answer: 1.0, "has no parameter `completion`"),
        (lambda completion, completions: 1.0, "both `completion`"),
        (lambda completion, *rest: 1.0, "positional"),
        (positional, "positional"),
    ]:
        with pytest.raises(ConfigError, match=message):
            FunctionReward(function)


def test_options_bind_to_further_parameters(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import assay\n"
        "def near(completion, answer, within=0.0):\n    return abs(float(completion) - answer) <= within\n"
        "@assay.reward(name='marked', parts=['p'])\ndef f(completion):\n    return 1\n"
        "def make(k):\n    def of(completion):\n        return k\n    return of\n"
        "def odd(k=1):\n    return k\n"
    )
    judge = JudgeConfig()
    assert one(find_reward(f"{file}:near", {}, judge), "4.5", ground_truth=4).value == 0.0
    assert one(find_reward(f"{file}:near", {"within": 1.0}, judge), "4.5", ground_truth=4).value == 1.0
    marked = find_reward(f"{file}:f", {}, judge)
    assert isinstance(marked, FunctionReward) and (marked.name, marked.parts) == ("marked", ("p",))
    assert one(find_reward(f"{file}:make", {"k": 0.25}, judge)).value == 0.25
    for name, options, message in [
        ("near", {"withn": 1.0}, "no parameter 'withn'"),
        ("near", {"completion": "x"}, "replace what is scored"),
        ("odd", {}, "made a int, which is not a reward.*takes no `completion`"),
        ("make", {}, "missing a required argument: 'k'"),
        ("near", {"timeout_s": -1}, "timeout_s=-1"),
        ("near", {"timeout_s": math.inf}, "timeout_s=inf"),
        ("near", {"timeout_s": math.nan}, "timeout_s=nan"),
        ("near", {"processes": True}, "processes=True"),
        ("near", {"processes": 10**6}, "processes=1000000"),
    ]:
        with pytest.raises(ConfigError, match=message):
            find_reward(f"{file}:{name}", options, judge)


def test_the_fingerprint_follows_file_and_options(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    text = "K = 1\ndef f(completion, k=0):\n    return K\n"

    def fingerprint(text: str, **options: Any) -> str:
        file.write_text(text)
        return find_reward(f"{file}:f", options, JudgeConfig()).fingerprint

    first = fingerprint(text)
    assert first.startswith("f:") and fingerprint(text) == first
    assert len({first, fingerprint(text.replace("K = 1", "K = 2")), fingerprint(text, k=1)}) == 3
    assert one(lambda completion: 1).fingerprint


def test_the_decorator_leaves_the_function_as_it_is() -> None:
    @assay.reward
    def plain(completion: str) -> float:
        return float(completion)

    @assay.reward(name="other", timeout_s=3)
    def named(completion: str) -> float:
        return 1.0

    assert plain("0.5") == 0.5 and FunctionReward(plain).name == "plain"
    with pytest.raises(ConfigError, match="cannot import a function that was made by code"):
        FunctionReward(named)
    with pytest.raises(ConfigError, match="processes=0"):
        assay.reward(processes=0)


def test_several_rewards_are_their_weighted_sum(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from assay.types import Score\n"
        "def right(completion, answer, bonus=0.0):\n    return (completion == answer) + bonus\n"
        "def short(completion):\n    return None if not completion else Score('scored', 0.5, {'letters': 1.0})\n"
    )
    reward = find_rewards([f"{file}:right", f"{file}:short*0.5"], {"right": {"bonus": 1.0}}, JudgeConfig())
    assert isinstance(reward, CombinedReward) and not reward.asks_judge and reward.parts == ("right", "short")
    good, failed = scored(reward, Sample("4", "4"), Sample("", "4"))
    assert good.value == 2.25 and good.parts == {"right": 2.0, "short": 0.5, "short/letters": 1.0}
    assert good.fingerprint == reward.fingerprint
    assert message_of(failed).startswith("short: short (mine.py) returned None")
    weighted = find_rewards([f"{file}:right*-1"], {"bonus": 3.0}, JudgeConfig())
    assert one(weighted, "4", ground_truth="5").value == -3.0
    other = find_rewards([f"{file}:right", f"{file}:short*0.25"], {"right": {"bonus": 1.0}}, JudgeConfig())
    assert other.fingerprint != reward.fingerprint


def test_a_sum_takes_rewards_of_any_kind_and_passes_on_what_is_invalid() -> None:
    def half(completion: str) -> float:
        return 0.5

    combined = CombinedReward([(ShareOfWords(), 2.0), (FunctionReward(half), 1.0)])
    good, invalid, broken = scored(combined, Sample("a", "a b"), Sample("", "a"), Sample("BROKEN", "a"))
    assert (good.value, good.status) == (1.5, "scored")
    assert (invalid.value, invalid.status) == (0.5, "invalid")
    said = message_of(broken)
    assert "words: RuntimeError: this response breaks the reward (" in said and "host_rewards.py, line " in said


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        ([], {}, "names nothing"),
        (["support.host_rewards:ShareOfWords*x"], {}, "weight 'x'"),
        (["support.host_rewards:ShareOfWords*nan"], {}, "weight 'nan'"),
        (["support.host_rewards:ShareOfWords", "support.host_rewards:ShareOfWords*2"], {}, "Two of the rewards"),
        (["support.host_rewards:ShareOfWords", "judge"], {"scale": 1.0}, r"options\.NAME\.scale"),
    ],
)
def test_impossible_sums_are_refused(names: Sequence[str], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        find_rewards(names, options, JudgeConfig())


def test_a_function_needs_no_key_and_its_engine_counts_samples() -> None:
    with RewardEngine(FunctionReward(lambda completion: 1.0), JudgeConfig(api_key_env="NO_SUCH_KEY")) as engine:
        engine.score_many_sync([Sample("a")] * 3)
        assert engine.counters() == {"samples": 3.0, "scored": 3.0, "invalid": 0.0, "errored": 0.0, "reread": 0.0}


def test_an_engine_scores_samples_and_no_text() -> None:
    with RewardEngine(FunctionReward(lambda completion: 1.0)) as engine:
        with pytest.raises(DataError, match=r"scores samples, not str \('4'\): Sample\(response"):
            engine.score_many_sync(["4"])  # type: ignore[list-item]
        with pytest.raises(DataError, match="not dict"):
            asyncio.run(engine.score({"response": "4"}))  # type: ignore[arg-type]


def test_a_function_that_takes_too_long_is_errored_at_the_deadline_of_its_batch() -> None:
    release = threading.Event()

    def stuck(completion: str) -> float:
        release.wait(60)
        return 1.0

    async def asleep(completion: str) -> float:
        await asyncio.sleep(3600)
        return 1.0

    for function in (stuck, asleep):
        with RewardEngine(FunctionReward(function), config=CONFIG) as engine:
            (score,) = engine.score_many_sync([Sample("a")], deadline_s=0.05)
            release.set()
        assert score.evidence["failure"] == "deadline"


def test_sys_exit_ends_a_batch_and_no_loop() -> None:
    def leaves(completion: str) -> float:
        raise SystemExit(3)

    with pytest.raises(RewardError, match=r"leaves \(test_reward_functions.py\) called sys.exit\(3\)"):
        one(leaves)


def test_an_engine_goes_on_after_it_was_closed() -> None:
    engine = RewardEngine(FunctionReward(lambda completion: 1.0))
    for _ in range(2):
        assert engine.score_many_sync([Sample("a")])[0].value == 1.0
        engine.close()


class Direct:
    """A reward that scores by itself, as a checker of ours does."""

    name = fingerprint = "direct"

    def __init__(self, outcome: Callable[[], Any]) -> None:
        self.outcome = outcome
        self.closed = 0

    async def evaluate(self, sample: Sample) -> Score:
        outcome = self.outcome()
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome  # type: ignore[no-any-return]

    async def close(self) -> None:
        self.closed += 1


def test_a_direct_reward_is_awaited_and_closed_with_its_engine() -> None:
    reward = Direct(lambda: Score("scored", 0.5, usage={"calls": 2}, cached=True))
    score = one(reward)
    assert (score.value, score.usage["calls"], score.cached, score.fingerprint) == (0.5, 2, True, "direct")
    assert reward.closed == 1
    assert "not a Score" in message_of(one(Direct(lambda: 0.5)))
    assert message_of(one(Direct(lambda: TimeoutError("own")))).startswith("TimeoutError: own")
    with pytest.raises(AssayError, match="never"):
        one(Direct(lambda: RewardError("never")))


def test_other_rewards_keep_their_one_line_too() -> None:
    class Broken(ShareOfWords):
        def score(self, sample: Sample, replies: Sequence[Reply]) -> Score:
            return {}["missing"]  # type: ignore[no-any-return]

    message = message_of(one(Broken()))
    assert message.startswith(f"KeyError: 'missing' ({__file__}, line ") and "\n" not in message
