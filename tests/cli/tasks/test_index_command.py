"""`assay index`: a user builds an index and searches it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from assay.cli import main as cli
from assay.retrieval.index import open_index
from support.embedding_models import write_word_model
from support.synthetic_problems import recipes, write_module

MADE = recipes(40, 5)


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rows = [
        {
            "name": f"level_1/{place}_{''.join(map(str.title, recipe))}",
            "language": "cuda" if place % 4 == 0 else "triton",
            "torch_code": write_module(recipe, place),
            "kernel_code": f"kernel {place}",
            "correct": place % 10 != 9,
            "speedup": 1 + place / 100,
        }
        for place, recipe in enumerate(MADE)
    ]
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for place in (1, 2):
        (tmp_path / f"q{place}.py").write_text(write_module(MADE[place], 900))
    return tmp_path


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main(["index", *words]) in (1, 2)
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("error: ") and captured.err.count("\n") == 1
    return captured.err


def test_build_and_search(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["index", "build", "--corpus", "own.jsonl"]) == 0
    said = capsys.readouterr().out
    assert "own.jsonl: 40 rows, 36 taken; passed over: 4 not correct" in said
    assert "wrote kernel_rag_index: 26 triton, 10 cuda. Ranked by bm25." in said
    assert cli.main(["index", "search", "--query", "q1.py", "-k", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "2 of 36 entries, ranked by bm25" and len(lines) == 3
    assert lines[1].startswith("1. level_1/1_") and "(triton, own.jsonl, 1.01x)" in lines[1]


def test_search_as_json_with_what_may_not_be_shown(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["index", "build", "--corpus", "assay:own.jsonl", "--output", "i", "--include-incorrect"])
    capsys.readouterr()
    search = ["index", "search", "--index", "i", "--query", "q1.py", "--json"]
    assert cli.main(search) == 0
    found = json.loads(capsys.readouterr().out)
    assert found[0]["kernel_code"] == "kernel 1" and found[0]["score"] >= found[1]["score"]
    assert cli.main([*search, "--exclude", "q1.py"]) == 0
    left = json.loads(capsys.readouterr().out)
    assert len(left) == 3 and "kernel 1" not in {one["kernel_code"] for one in left}


def test_language_limits_and_kernels_of_a_problem(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    twice = corpus / "twice.jsonl"
    twice.write_text(2 * (corpus / "own.jsonl").read_text())
    assert cli.main(["index", "build", "--corpus", str(twice), "--language", "cuda"]) == 0
    assert "10 cuda; 10 more kernels of the same problems were left out" in capsys.readouterr().out
    assert cli.main(["index", "build", "--corpus", str(twice), "--per-problem", "2", "--max-entries", "50"]) == 0
    assert "25 beyond the first 50" in capsys.readouterr().out
    assert len(open_index(Path("kernel_rag_index"))) == 50


def test_with_a_model(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_word_model(corpus / "model", [write_module(recipe, 0) for recipe in MADE])
    build = ["index", "build", "--corpus", "own.jsonl", "--model", "model", "--device", "cpu"]
    assert cli.main(build) == 0
    assert "Ranked by embeddings." in capsys.readouterr().out
    assert cli.main(["index", "search", "--query", "q2.py", "--device", "cpu"]) == 0
    assert "ranked by embeddings" in capsys.readouterr().out


def test_bad_input_is_one_clear_line(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "there is no index at kernel_rag_index. Build one: assay index build" in refused(
        capsys, "search", "--query", "q1.py"
    )
    assert "say what to search for: --query FILE" in refused(capsys, "search")
    assert "cannot read gone.py: No such file" in refused(capsys, "search", "--query", "gone.py")
    assert "neither a corpus nor a file" in refused(capsys, "build", "--corpus", "kernelbok")
    assert "gone.jsonl does not exist" in refused(capsys, "build", "--corpus", "gone.jsonl")
    (corpus / "empty").mkdir()
    assert "embedding model empty cannot be loaded" in refused(
        capsys, "build", "--corpus", "own.jsonl", "--model", "empty"
    )
    (corpus / "binary.py").write_bytes(b"\xff\xfe")
    assert "is not UTF-8 text" in refused(capsys, "search", "--query", "binary.py")
    assert "has no settings" in refused(capsys, "build", "k=3")
    (corpus / "rl.jsonl").write_text(json.dumps({"ops": ["a"], "code": "x = 1"}) + "\n")
    assert "problems without solutions" in refused(capsys, "build", "--corpus", "rl.jsonl")


def test_a_number_that_is_none_is_refused(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["build", "--levels", "1,x"], ["search", "-k", "0"], ["build", "--per-problem", "-1"], ["serve"]):
        with pytest.raises(SystemExit) as left:
            cli.main(["index", *words])
        assert left.value.code == 2
        assert "error: argument" in capsys.readouterr().err
