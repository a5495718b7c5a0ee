"""Every key of the kernel builders: its default, and that setting it changes what a run does; and what is refused."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from assay.config import resolved
from assay.config.schema import settings
from assay.envs.base import BuildContext, EnvData, iter_builders
from assay.envs.kernelbench.dataset import KernelBenchDatasetBuilder, MultiTurnKernelBenchDatasetBuilder
from assay.envs.kernelbench.grading import missing_tokens
from assay.envs.kernelbench.rewards import PARTS, score_of, signals_of
from assay.envs.kernelbench.selection import split_problems
from assay.errors import ConfigError, DataError, GradingServiceError
from assay.kernels.problems.sources import load_problems
from assay.kernels.verdicts import Verdict
from assay.rollouts.renderers.chat import ChatRenderer
from assay.rollouts.renderers.named import make_renderer
from assay.training.config import TrainingConfig, load_config
from support.chat_templates import chat_model
from support.kernel_policies import RIGHT
from support.sandboxes import needs_walls

HERE = ["dataset_src=shipped", "use_modal=false"]
MEASURED = ["measure_performance=true", "grader.scale=none"]

SINGLE: dict[str, Any] = {
    "level": 1,
    "start_problem": None,
    "end_problem": None,
    "backend": "triton",
    "dataset_src": "huggingface",
    "batch_size": 4,
    "group_size": 4,
    "num_epochs": 1,
    "shuffle": True,
    "num_correct_trials": 5,
    "measure_performance": False,
    "reward_format_weight": 0.1,
    "reward_compile_weight": 0.2,
    "reward_correctness_weight": 1.0,
    "reward_speed_weight": 0.0,
    "reward_length_weight": 0.05,
    "reward_thinking_weight": 0.1,
    "renderer_name": "qwen3",
    "test_fraction": 0.1,
    "prompt_option": "one_shot",
    "rag_index_path": None,
    "raicl_k": 3,
    "use_modal": True,
    "modal_gpu_type": "A100",
    "modal_timeout": 120.0,
}
SEVERAL = {
    **SINGLE,
    "prompt_option": "raicl",
    "max_turns": 4,
    "early_stop_on_correct": True,
    "speedup_threshold": None,
}


def load(*keys: str, node: str = "dataset_builder", run: tuple[str, ...] = ()) -> Any:
    """The builder that the keys make, as a run has it."""
    return load_config(None, [*run, *(f"{node}.{key}" for key in keys)]).active_builder


def made(tmp_path: Path, *keys: str, max_turns: int = 1, seed: int = 0) -> EnvData:
    """The data of a builder of shipped problems, graded here."""
    builder: KernelBenchDatasetBuilder = load(*HERE, *keys)
    return builder.build(BuildContext(seed, max_turns, tmp_path, chat=True))


def ids(data: EnvData, heldout: bool = False) -> list[str]:
    found = [one.task.id.partition(":")[0] for one in iter_builders(data.heldout if heldout else data.train)]
    asyncio.run(data.close())
    return found


# Defaults


@pytest.mark.parametrize(("key", "default"), SINGLE.items(), ids=list(SINGLE))
def test_the_default_of_a_key(key: str, default: Any) -> None:
    assert settings(KernelBenchDatasetBuilder)[key].default == default
    assert getattr(TrainingConfig().dataset_builder, key) == default


@pytest.mark.parametrize(("key", "default"), SEVERAL.items(), ids=list(SEVERAL))
def test_the_default_of_a_key_of_several_turns(key: str, default: Any) -> None:
    assert settings(MultiTurnKernelBenchDatasetBuilder)[key].default == default


def test_the_builder_of_several_turns_is_a_clone_unless_it_is_given(tmp_path: Path) -> None:
    run = ("mode=multi_turn", "max_turns=3", "dataset_builder.group_size=7")
    cloned = load_config(None, run)
    assert cloned.active_builder is cloned.dataset_builder and cloned.active_builder.group_size == 7
    assert cloned.build_context().max_turns == 3
    own = load_config(
        None,
        ["mode=multi_turn", "dataset_builder.group_size=7"]
        + [f"multiturn_dataset_builder.{key}" for key in ("prompt_option=one_shot", "max_turns=2")],
    )
    assert isinstance(own.active_builder, MultiTurnKernelBenchDatasetBuilder)
    assert own.active_builder.group_size == 4 and own.build_context().max_turns == 2
    assert own.active_builder.course(2).max_turns == 2


# What keys do


@needs_walls
@pytest.mark.parametrize(
    ("keys", "found"),
    [
        (["level=2", "test_fraction=0"], [f"2/{n}" for n in range(1, 11)]),
        (["levels=1,3", "start_problem=2", "end_problem=3", "test_fraction=0"], ["1/2", "1/3", "3/2", "3/3"]),
        (["start_problem=11", "test_fraction=0"], ["1/11", "1/12"]),
        (["end_problem=2", "test_fraction=0", "num_epochs=2"], ["1/1", "1/2", "1/1", "1/2"]),
    ],
)
def test_level_range_and_epochs_choose_problems(tmp_path: Path, keys: list[str], found: list[str]) -> None:
    assert ids(made(tmp_path, *keys, "shuffle=false")) == found


@needs_walls
def test_shuffle_batch_size_and_seed_decide_on_the_order(tmp_path: Path) -> None:
    plain = ids(made(tmp_path, "test_fraction=0", "shuffle=false"))
    shuffled = [ids(made(tmp_path, "test_fraction=0", seed=seed)) for seed in (0, 0, 1)]
    assert plain == sorted(plain, key=lambda key: int(key.partition("/")[2]))
    assert shuffled[0] == shuffled[1] != shuffled[2] and sorted(shuffled[0]) == sorted(plain) != shuffled[0]
    data = made(tmp_path, "test_fraction=0", "batch_size=5")
    assert [len(data.train.batch(i)) for i in range(len(data.train))] == [5, 5, 2]
    asyncio.run(data.close())


@needs_walls
def test_test_fraction_holds_out_the_same_problems_whatever_the_prompt(tmp_path: Path) -> None:
    held = {
        tuple(ids(made(tmp_path, "levels=1,2,3", "test_fraction=0.2", *more, seed=seed), heldout=True))
        for seed, more in enumerate([[], ["prompt_option=zero_shot"], ["reward_thinking_weight=0"]])
    }
    (found,) = held
    assert len(found) == 6 and {key[0] for key in found} == {"1", "2", "3"}
    train = ids(made(tmp_path, "levels=1,2,3", "test_fraction=0.2"))
    assert not set(train) & set(found)
    assert ids(made(tmp_path, "test_fraction=0"), heldout=True) == []


def test_problems_with_one_text_are_on_one_side_and_one_is_held_out_at_least() -> None:
    problems = list(load_problems("shipped", (1,)))
    twin = type(problems[0])(1, 99, "twin", problems[0].code, "test")
    for fraction in (0.05, 0.3, 0.6, 0.9):
        train, held = split_problems([*problems, twin], fraction)
        assert held and train and not {p.hash for p in train} & {p.hash for p in held}
    with pytest.raises(ConfigError, match=r"test_fraction=0\.1 of 1 problem would leave none"):
        split_problems(problems[:1], 0.1)
    assert split_problems(problems[:1], 0) == (problems[:1], [])


@pytest.mark.parametrize(
    ("option", "examples"), [("zero_shot", 0), ("one_shot", 1), ("few_shot", 3)], ids=lambda value: str(value)
)
@needs_walls
def test_prompt_option_backend_and_thinking_change_the_prompt(tmp_path: Path, option: str, examples: int) -> None:
    def prompt(*keys: str) -> str:
        data = made(tmp_path, f"prompt_option={option}", *keys)
        text = next(iter_builders(data.train)).task.text
        asyncio.run(data.close())
        return text

    assert prompt().count("The answer:") == examples
    assert "<think>" in prompt() and "<think>" not in prompt("reward_thinking_weight=0")
    assert "Triton" in prompt()
    reward = "reward_correctness_weight=0"
    assert "load_inline" in prompt("backend=cuda", reward) and "@triton.jit" not in prompt("backend=cuda", reward)


@needs_walls
def test_raicl_shows_entries_of_the_index_and_never_a_solution_of_a_problem(tmp_path: Path) -> None:
    pytest.importorskip("bm25s", reason="retrieval is not installed")
    index: Any = pytest.importorskip("assay.retrieval.index", reason="retrieval is not part of this installation")
    problems = load_problems("shipped", (1,))

    def entry(name: str, code: str, kernel: str, language: str = "triton") -> Any:
        return index.Entry(name, language, code, kernel, index.code_hash(code), "test", True, None)

    near = problems[0].code.replace("torch.sin(self.frequency * x) ** 2", "torch.cos(x) - 3")
    entries = [
        entry("copy", f"# the same\n{problems[0].code}", "LEAK of a training problem"),
        entry(f"level_1/{problems[1].name}", "import torch\nx = 1", "LEAK by its name"),
        *(
            entry(f"other{n}", f"{near}\nvalue = {n}\n" + f"def f{n}(x): return x * {n}\n" * n, f"KERNEL {n}")
            for n in range(9)
        ),
        entry("cuda", near, "KERNEL in CUDA", "cuda"),
    ]
    index.build_index(entries, tmp_path / "index")
    where = ["prompt_option=raicl", f"rag_index_path={tmp_path / 'index'}"]
    for k in (1, 2):
        data = made(tmp_path, *where, f"raicl_k={k}")
        prompts = [one.task.text for part in (data.train, data.heldout) for one in iter_builders(part)]
        asyncio.run(data.close())
        assert not any("LEAK" in prompt or "in CUDA" in prompt for prompt in prompts)
        assert max(prompt.count("The answer:") for prompt in prompts) == k
    with pytest.raises((ConfigError, DataError), match="none"):
        made(tmp_path, "prompt_option=raicl", f"rag_index_path={tmp_path / 'none'}")


@pytest.mark.parametrize(
    ("keys", "found"),
    [
        ([], {"run_on": "modal", "device": "cuda", "num_correct_trials": 5, "measure_performance": False}),
        (["num_correct_trials=2"], {"num_correct_trials": 2}),
        (["backend=cuda"], {"backend": "cuda", "device": "cuda"}),
        (MEASURED, {"measure_performance": True, "scale": "none"}),
        (["use_modal=false"], {"run_on": "local", "device": "cpu"}),
        (["use_modal=false", "grader.compile_check=off"], {"compile_check": "off"}),
        (["grader.max_prepared=7"], {"max_prepared": 7}),
    ],
)
def test_keys_of_the_grader_reach_it(keys: list[str], found: dict[str, Any]) -> None:
    config = load(*keys).grading()
    assert {name: getattr(config, name) for name in found} == found


def test_keys_of_modal_reach_it() -> None:
    modal = load("modal_gpu_type=H100", "modal_timeout=60", "grader.modal.modal_app_name=mine").grading().modal
    assert (modal.modal_gpu_type, modal.modal_timeout, modal.modal_app_name) == ("H100", 60.0, "mine")
    default = load().grading().modal
    assert (default.modal_gpu_type, default.modal_timeout) == ("A100", 120.0)


@pytest.mark.parametrize("part", PARTS)
def test_the_weight_of_a_part_changes_the_reward(part: str) -> None:
    verdict = Verdict("ok", "timing", tests_passed=5, tests_total=5, timing={"rewardable": 2.0})
    signals = signals_of(verdict, code=RIGHT, thought="plan")

    def value(*keys: str) -> float:
        found = score_of(signals, load(*(MEASURED if part == "speed" else []), *keys).rules)
        assert found.value is not None
        return found.value

    share = score_of(signals, load().rules).parts[part]
    own = {part: default for part in PARTS if (default := SINGLE[f"reward_{part}_weight"]) is not None}[part]
    assert value(f"reward_{part}_weight=3.5") - value() == pytest.approx((3.5 - own) * share) and share > 0


def test_early_stop_and_threshold_change_how_rollouts_end() -> None:
    run = ("mode=multi_turn",)
    right = Verdict("ok", "numerics")
    assert load(run=run).course(4).ends(right, 1)
    assert not load("early_stop_on_correct=false", run=run).course(4).ends(right, 1)
    assert not load("speedup_threshold=1.0", *MEASURED, run=run).course(4).ends(right, 1)


def test_qwen3_writes_the_template_of_the_tokenizer(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(chat_model(tmp_path, "qwen3"))
    renderer = make_renderer("qwen3", tokenizer)
    assert isinstance(renderer, ChatRenderer) and renderer.thinking is not None
    assert load_config(None).build_context().chat, "a chat model is told what to do in messages"


@needs_walls
def test_kernelbench_root_is_where_local_problems_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "checkout" / "KernelBench" / "level1"
    folder.mkdir(parents=True)
    for problem in load_problems("shipped", (1,))[:2]:
        (folder / f"{problem.id}_Own.py").write_text(problem.code)
    monkeypatch.setenv("KERNELBENCH_ROOT", str(tmp_path / "checkout"))
    found = load("use_modal=false", "dataset_src=local").problems()
    assert [problem.name for problem in found] == ["1_Own", "2_Own"]
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"level": 7, "problem_id": 3, "name": "row", "code": found[0].code}))
    own = load("use_modal=false", "dataset_src=jsonl", "level=7", f"problems_path={rows}").problems()
    assert [problem.key for problem in own] == ["7/3"]


# What is refused


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (["start_problem=9", "end_problem=3"], "start_problem=9 is after"),
        (["prompt_option=raicl"], "rag_index_path is not set"),
        (["rag_index_path=x"], "rag_index_path=x is set, but it is read only when"),
        (["reward_speed_weight=1"], "pays for speed, which is not measured"),
        ([f"reward_{part}_weight=0" for part in PARTS if part != "speed"], "every answer earns the same"),
        (["reward_correctness_weight=0", "reward.mode=gated"], "pays right kernels alone"),
        (["levels=1,1"], "names a level twice"),
        (["measure_performance=true"], "grader.scale=none"),
        (["use_modal=false", "backend=cuda"], "CUDA sources are only compiled here"),
        (["use_modal=false", "modal_timeout=5"], "use_modal is true"),
        (["grader.url=http://a:1"], r"use_modal=true and \S*grader\.url are two places"),
        (["use_modal=false", "grader.url=http://a:1", "grader.wall_s=5"], r"only when \S*grader\.url is null"),
        (["use_modal=false", "grader.url=http://a:1?key=secret"], "has a user, a password"),
        (["use_modal=false", "grader.url=a:1"], "is not an http:// or https:// address"),
        (["dataset_src=jsonl"], "problems_path is not set"),
        (["reward_correctness_weight=-1"], "must be at least 0"),
        (["group_size=1"], "nothing to be compared with"),
        (["prompt_option=two_shot"], "zero_shot, one_shot, few_shot, raicl"),
    ],
)
def test_contradictions_are_one_clear_line(keys: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load(*keys)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (["mode=multi_turn", "max_turns=0"], "max_turns=0 must be at least 1"),
        (["mode=multi_turn", "dataset_builder.speedup_threshold=2"], "asks for a speedup, which is not measured"),
        (["dataset_builder.early_stop_on_correct=false"], "read only when rollouts have several turns"),
        (["mode=multi_turn", "gamma=1"], "fails first can earn more"),
        (["backend=tinker", "lora_rank=0"], "Set lora_rank to 1 or more"),
    ],
)
def test_what_a_run_cannot_do_is_one_clear_line(run: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load_config(None, run)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (["level=8"], "dataset_src=shipped has no problem of level 8. Its levels are 1-3"),
        (["start_problem=50"], r"no problem of level 1 has an id from 50 to the last: its ids go from 1 to 12"),
        (["end_problem=1"], "would leave none to train on"),
        (["dataset_src=jsonl", "problems_path=/nowhere.jsonl"], "cannot read the problem file /nowhere.jsonl"),
    ],
)
def test_problems_that_are_not_there_are_named_before_anything_starts(
    tmp_path: Path, keys: list[str], message: str
) -> None:
    with pytest.raises((ConfigError, DataError), match=message):
        made(tmp_path, *keys)


def test_modal_without_its_tokens_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MODAL_CONFIG_PATH", str(tmp_path / "none.toml"))
    builder = load("dataset_src=shipped")
    with pytest.raises(ConfigError, match="MODAL_TOKEN_ID and MODAL_TOKEN_SECRET are not set"):
        builder.build(BuildContext(0, 1, tmp_path))
    (check,) = asyncio.run(builder.checks(BuildContext(0, 1, tmp_path)))
    assert not check.ok and "MODAL_TOKEN_ID" in check.found
    assert asyncio.run(load(*HERE).checks(BuildContext(0, 1, tmp_path))) == []
    assert missing_tokens({"MODAL_TOKEN_ID": "a", "MODAL_TOKEN_SECRET": "b"}) == ""
    assert missing_tokens({"MODAL_TOKEN_ID": "a"}) == "MODAL_TOKEN_SECRET is not set"
    (tmp_path / "kept.toml").write_text("[default]")
    assert missing_tokens({"MODAL_CONFIG_PATH": str(tmp_path / "kept.toml")}) == ""


@pytest.mark.parametrize(("preset", "source"), [(None, ["dataset_builder.dataset_src=shipped"]), ("kernels_cpu", [])])
def test_a_grading_service_that_is_not_there_is_said_before_anything_starts(
    tmp_path: Path, preset: str | None, source: list[str]
) -> None:
    there = ["dataset_builder.use_modal=false", "dataset_builder.grader.url=http://127.0.0.1:1"]
    builder: Any = load_config(preset, [*source, *there]).active_builder
    assert "by the service at http://127.0.0.1:1" in builder.describe()
    with pytest.raises(GradingServiceError, match="cannot be used"):
        builder.build(BuildContext(0, 1, tmp_path))
    (check,) = asyncio.run(builder.checks(BuildContext(0, 1, tmp_path)))
    assert not check.ok and "cannot be used" in check.found


def test_every_key_is_in_the_record_of_a_run() -> None:
    record = resolved(TrainingConfig())["dataset_builder"]
    assert SINGLE.keys() <= record.keys() and {key: record[key] for key in SINGLE} == SINGLE
