"""Data sets in their published columns, and what is passed over."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.errors import ConfigError, DataError
from assay.retrieval.corpora import Corpus, Reading, best_of_each, corpus_of, entries_of, write_pairs
from assay.retrieval.pairs import (
    FORMS,
    MAX_KERNEL_CHARACTERS,
    MAX_PROBLEM_CHARACTERS,
    Pair,
    fits,
    kernel_in_reply,
    pair_of,
)
from support.retrieval_entries import entry

PROBLEM = "import torch\n\nclass A(torch.nn.Module):\n    def forward(self, x):\n        return torch.softmax(x, -1)\n"
KERNEL = "import triton\n\nclass ModelNew:\n    pass\n"

KERNELBOOK = {
    "entry_point": "Softmax",
    "original_triton_code": "# as generated",
    "python_code": PROBLEM,
    "triton_code": KERNEL,
    "repo_name": "someone/something",
    "module_name": "Softmax",
    "synthetic": False,
    "uuid": 7,
    "licenses": ["MIT"],
    "stars": 3,
    "sha": "0123",
    "repo_link": "https://example.org",
}
ARCHIVE = {
    "Op_Name": "23_Softmax",
    "Level_ID": 1,
    "Task_ID": 23,
    "Kernel_Name": "23_softmax_warp",
    "CUDA_Runtime": 0.02,
    "PyTorch_Native_Runtime": 0.05,
    "CUDA_Speedup_Native": 2.5,
    "CUDA_Speedup_Compile": 1.5,
    "CUDA_Code": "__global__ void k() {}",
    "PyTorch_Code_Module": PROBLEM,
    "PyTorch_Code_Functional": "def module_fn(x): ...",
    "Correct": True,
    "Max_Diff": 1e-6,
    "Error": "",
}
COLDSTART = {
    "messages": [
        {"role": "user", "content": "Optimize Model."},
        {"role": "assistant", "content": "First.\n```python\nclass ModelNew: a = 1\n```\n"},
        {"role": "user", "content": "Faster."},
        {
            "role": "assistant",
            "content": "```python\nx = 1\n```\nAnd:\n```python\nclass ModelNew: a = 2\n```\nDone.",
        },
        {"role": "user", "content": "Faster."},
        {"role": "assistant", "content": "```python\nclass ModelNew: a = 3\n```"},
    ],
    "uuid": 12,
    "entry_point": "Model",
    "repo_name": "",
    "module_name": "",
    "final_speedup": 1.75,
    "num_rounds": 3,
    "original_python_code": PROBLEM,
    "best_round": 2,
    "timestamp": 1.0,
    "conversion_mode": "full_conversation_enhanced",
    "enable_thinking": False,
}
RL = {
    "data_source": "cuda_llm",
    "prompt": [{"role": "user", "content": "You write custom Triton kernels."}],
    "ability": "kernel_optimization",
    "reward_model": {"ground_truth": PROBLEM, "style": "rule"},
    "extra_info": {
        "entry_point": "Model",
        "level": "1",
        "module_name": "Soft",
        "ops": "[]",
        "uuid": "9",
    },
}
OPS = {"ops": ["torch.softmax", "torch.abs"], "data_source": "torch#2", "code": PROBLEM}
OWN = {
    "name": "1_Snake",
    "language": "cuda",
    "torch_code": PROBLEM,
    "kernel_code": KERNEL,
    "correct": True,
    "speedup": None,
}
ROWS = {
    "kernelbook": KERNELBOOK,
    "ai-cuda-engineer": ARCHIVE,
    "drkernel-coldstart": COLDSTART,
    "drkernel-rl": RL,
    "cuda-agent-ops": OPS,
    "assay": OWN,
}


def write(path: Path, *rows: object) -> Path:
    if path.suffix == ".parquet":
        from datasets import Dataset

        Dataset.from_list(list(rows)).to_parquet(str(path))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(path: Path, form: str | None = None, **limits: object) -> tuple[list[Pair], Reading]:
    reading = Reading(Corpus(str(path), form), **limits)  # type: ignore[arg-type]
    return list(reading), reading


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
@pytest.mark.parametrize("form", FORMS)
def test_each_form_is_read_and_recognised_by_its_columns(tmp_path: Path, form: str, suffix: str) -> None:
    path = write(tmp_path / f"rows{suffix}", ROWS[form], ROWS[form])
    named, _ = read(path, form)
    recognised, reading = read(path)
    assert named == recognised and len(named) == 2
    assert (reading.rows, reading.taken, dict(reading.skipped)) == (2, 2, {})
    assert named[0].problem == PROBLEM
    assert (named[0].solution is not None) == FORMS[form].solved


def one(tmp_path: Path, row: object) -> Pair:
    (pair,) = read(write(tmp_path / "row.jsonl", row))[0]
    return pair


def test_what_the_columns_say(tmp_path: Path) -> None:
    book, archive, cold, rl, ops, own = (one(tmp_path, row) for row in ROWS.values())
    assert (book.name, book.language, book.solution, book.speedup) == ("Softmax", "triton", KERNEL, None)
    assert (archive.name, archive.language) == ("level_1/23_Softmax", "cuda")
    assert (archive.solution, archive.speedup, archive.correct) == (ARCHIVE["CUDA_Code"], 2.5, True)
    assert cold.solution == "class ModelNew: a = 2\n" and cold.speedup == 1.75 and len(cold.messages) == 6
    assert cold.messages[1].role == "assistant"
    assert (rl.name, rl.solution, rl.messages[0].content) == ("Soft", None, "You write custom Triton kernels.")
    assert (ops.name, ops.language, ops.solution) == ("torch.softmax+torch.abs", "cuda", None)
    assert (own.name, own.language) == ("1_Snake", "cuda")


def test_the_archive_s_names_get_number_and_level_where_they_lack_them(tmp_path: Path) -> None:
    assert one(tmp_path, {**ARCHIVE, "Op_Name": "softmax"}).name == "level_1/23_softmax"
    assert one(tmp_path, {**ARCHIVE, "Op_Name": None, "Level_ID": None, "Task_ID": None}).name == "23_softmax_warp"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({**KERNELBOOK, "python_code": None}, "no problem"),
        ({**KERNELBOOK, "python_code": 3}, "no problem"),
        ({**KERNELBOOK, "triton_code": "  \n"}, "no kernel"),
        ({**KERNELBOOK, "python_code": "x" * (MAX_PROBLEM_CHARACTERS + 1)}, "problem over 50,000 characters"),
        ({**KERNELBOOK, "triton_code": "x" * (MAX_KERNEL_CHARACTERS + 1)}, "kernel over 100,000 characters"),
        ({**KERNELBOOK, "triton_code": "\ud800"}, "not text"),
        ({**ARCHIVE, "Correct": False}, "not correct"),
        ({**ARCHIVE, "Correct": None}, "correctness unknown"),
        ({**ARCHIVE, "Correct": "yes"}, "correctness unknown"),
        ({**COLDSTART, "final_speedup": 0.0}, "not correct"),
        ({**COLDSTART, "final_speedup": None}, "not correct"),
        ({**COLDSTART, "messages": [{"role": "user"}]}, "no kernel"),
        ({**COLDSTART, "messages": "text"}, "no kernel"),
        ({**COLDSTART, "best_round": 3, "messages": [{"role": "assistant", "content": "I cannot."}]}, "no kernel"),
        ({**RL, "reward_model": {"ground_truth": "", "style": "rule"}}, "no problem"),
        ({**OPS, "code": []}, "no problem"),
        ({**OWN, "language": "hip"}, "unknown language"),
        ({**OWN, "correct": False}, "not correct"),
    ],
)
def test_rows_that_say_nothing_useful_are_counted(tmp_path: Path, row: dict, reason: str) -> None:
    pairs, reading = read(write(tmp_path / "rows.jsonl", row))
    assert pairs == [] and dict(reading.skipped) == {reason: 1} and reading.rows == 1
    assert f"1 rows, 0 taken; passed over: 1 {reason}" in reading.summary()


def test_incorrect_ones_and_limits_when_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", *[{**ARCHIVE, "Correct": number % 2 == 0} for number in range(10)])
    pairs, _ = read(path, incorrect=True)
    assert [pair.correct for pair in pairs] == [True, False] * 5
    pairs, reading = read(path, max_entries=2)
    assert len(pairs) == 2 and reading.skipped["beyond the first 2"] == 7


@pytest.mark.parametrize("speedup", [float("nan"), float("inf"), -1.0, 0, True, "2x", 1e9])
def test_a_speedup_that_cannot_be_is_none(tmp_path: Path, speedup: object) -> None:
    assert one(tmp_path, {**ARCHIVE, "CUDA_Speedup_Native": speedup}).speedup is None


def test_a_row_without_a_column_means_another_file(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", KERNELBOOK, {"python_code": PROBLEM})
    with pytest.raises(DataError, match=r"line 2 lacks a column .*python_code, triton_code. It has python_code"):
        read(path)
    path = write(tmp_path / "rows.jsonl", {"question": "?"})
    with pytest.raises(DataError, match=r"has the columns of no known data set: question. Known are kernelbook: "):
        read(path)
    with pytest.raises(DataError, match=r"lacks a column of its data set, which has PyTorch_Code_Module"):
        read(write(tmp_path / "rows.jsonl", KERNELBOOK), "ai-cuda-engineer")


def test_a_folder_has_the_splits_of_its_data_set(tmp_path: Path) -> None:
    for level in (1, 2, 3):
        row = {**ARCHIVE, "Level_ID": level}
        (tmp_path / "data").mkdir(exist_ok=True)
        write(tmp_path / "data" / f"level_{level}-00000-of-00001.parquet", row)
    every, _ = read(tmp_path, "ai-cuda-engineer")
    assert [pair.name[:7] for pair in every] == ["level_1", "level_2", "level_3"]
    reading = Reading(corpus_of(f"ai-cuda-engineer:{tmp_path}", (3, 1)))
    assert [pair.name[:7] for pair in reading] == ["level_3", "level_1"]


def test_corpora_as_the_command_line_writes_them(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", KERNELBOOK)
    assert corpus_of("kernelbook") == Corpus("GPUMODE/KernelBook", "kernelbook")
    assert corpus_of(f"kernelbook:{path}") == Corpus(str(path), "kernelbook")
    assert corpus_of(str(path)) == Corpus(str(path))
    for text, said in [
        ("kernelbok", "neither a corpus nor a file"),
        ("", "neither a corpus nor a file"),
        ("assay", "needs a file"),
        ("kernelbook:", "needs a file"),
    ]:
        with pytest.raises(ConfigError, match=said):
            corpus_of(text)
    with pytest.raises(ConfigError, match=r"has no level_9. It has level_1, level_2, level_3"):
        corpus_of("ai-cuda-engineer", (9,))


def test_problems_without_solutions_are_no_entries(tmp_path: Path) -> None:
    pairs, _ = read(write(tmp_path / "rows.jsonl", RL))
    with pytest.raises(DataError, match="problems without solutions"):
        list(entries_of(pairs))


def test_pairs_are_written_and_read_again(tmp_path: Path) -> None:
    pairs = [one(tmp_path, ARCHIVE), one(tmp_path, KERNELBOOK)]
    assert write_pairs(tmp_path / "own.jsonl", pairs) == 2
    again, _ = read(tmp_path / "own.jsonl")
    shown = [(pair.name, pair.language, pair.problem, pair.solution, pair.correct, pair.speedup) for pair in pairs]
    assert [(p.name, p.language, p.problem, p.solution, p.correct, p.speedup) for p in again] == shown
    assert next(entries_of(again)).kernel_code == ARCHIVE["CUDA_Code"]


def test_the_fastest_kernels_of_a_problem_are_kept() -> None:
    a, b = "torch.relu(x)", "torch.tanh(x)"
    given = [
        entry(a, "slow", speedup=0.5),
        entry(b, "none"),
        entry(f"# again\n{a}", "fast", speedup=3.0),
        entry(a, "same", speedup=3.0),
        entry(a, "cuda", "cuda", 0.1),
    ]
    assert [made.name for made in best_of_each(given, 1)] == ["none", "fast", "cuda"]
    assert [made.name for made in best_of_each(given, 2)] == ["none", "fast", "same", "cuda"]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("```python\nclass ModelNew:\n    pass\n```", "class ModelNew:\n    pass\n"),
        ("class ModelNew:\n    pass\n", "class ModelNew:\n    pass\n"),
        ("```\nclass ModelNew: 1\n```\n```\nclass ModelNew: 2\n```", "class ModelNew: 2\n"),
        ("```python\nclass ModelNew: 1\n```\n```python\nclass ModelNew: cut", "class ModelNew: 1\n"),
        ("```python\nclass Model: 1\n```", None),
        ("nothing", None),
    ],
)
def test_the_kernel_in_a_published_answer(text: str, code: str | None) -> None:
    assert kernel_in_reply(text) == code


TEXT = st.text(alphabet=st.characters(codec=None), max_size=20)
KEYS = st.text(max_size=5) | st.sampled_from(["role", "content"])
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=8,
)


@pytest.mark.parametrize("form", FORMS)
@settings(deadline=None)
@given(data=st.data())
def test_columns_may_hold_anything(form: str, data: st.DataObject) -> None:
    row = dict(ROWS[form])
    for name in data.draw(st.lists(st.sampled_from(sorted(row)), min_size=1, max_size=3)):
        row[name] = data.draw(ANYTHING)
    if fits(FORMS[form], row):
        found = pair_of(row, FORMS[form], "x", incorrect=True)
        assert isinstance(found, str) or (found.problem.encode() and isinstance(found.correct, bool))
