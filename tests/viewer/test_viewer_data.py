"""What the page is made of, without a browser: the index, the chunks, the bounds, the policy, the command."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.cli.main import main
from assay.errors import RunDirectoryError
from assay.types import Score
from assay.viewer import catalogue as catalogue_module
from assay.viewer.catalogue import read_catalogue, snippet
from assay.viewer.chunks import MAX_ITEMS, MAX_TEXT, bounded, chunk_of, index_of, rounded
from assay.viewer.page import PAGE, assets, page_parts, run_names, write_page
from support.recorded_run import edit
from support.viewer_runs import HOSTILE, RunFiles, Said


def blocks(page: str) -> dict[str, Any]:
    """The data in a page, by name."""
    found = re.findall(r'<script type="application/octet-stream" id="([\w-]+)">([A-Za-z0-9+/=]*)</script>', page)
    return {name: json.loads(gzip.decompress(base64.b64decode(data))) for name, data in found}


def page_of(run: Path, *, served: bool = False) -> str:
    return b"".join(page_parts([read_catalogue(run)], served=served)).decode()


def test_the_index_and_the_chunks_hold_the_run(files: RunFiles) -> None:
    data = blocks(page_of(files.path))
    (run,) = data["index"]["runs"]
    traces = [json.loads(line) for line in (files.path / "traces.jsonl").read_text().splitlines()]
    assert len(run["rollouts"]["reward"]) == len({(r["step"], r["split"], r["group"], r["sample"]) for r in traces})
    assert run["groups"]["count"] == [len(body["rollouts"]) for body in data["chunk-0-0"]]
    said = [turn.get("text") for body in data["chunk-0-0"] for one in body["rollouts"] for turn in one["turns"]]
    assert said == [record["text"] for record in traces]
    place = run["groups"]["step"].index(3)
    turn = data["chunk-0-0"][place]["rollouts"][1]["turns"][0]
    record = next(r for r in traces if (r["step"], r["group"], r["sample"]) == (3, 0, 1))
    assert turn["score"]["parts"] == record["score"]["parts"]
    assert "".join(turn["tokens"]["pieces"]) == turn["text"]
    assert turn["advantage"] == pytest.approx(record["advantage"], rel=1e-5)


def test_what_was_thought_is_in_the_page(files: RunFiles, tmp_path: Path) -> None:
    shutil.copytree(files.path, tmp_path / "run")
    edit(tmp_path / "run", "traces.jsonl", 1, {"thought": "hm"})
    data = blocks(page_of(tmp_path / "run"))
    assert [turn.get("thought") for turn in data["chunk-0-0"][0]["rollouts"][0]["turns"]] == ["hm"]


def test_large_groups_are_chunks_of_their_own(files: RunFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = read_catalogue(files.path)
    monkeypatch.setattr(catalogue_module, "CHUNK_CHARACTERS", 200)
    many = read_catalogue(files.path)
    assert len(whole.chunks) == 1 and len(many.chunks) > 6
    together = [body for n in range(len(many.chunks)) for body in json.loads(gzip.decompress(chunk_of(many, n)))]
    assert together == json.loads(gzip.decompress(chunk_of(whole, 0)))
    places = [(group.chunk, group.place) for group in many.groups]
    assert places == [(c, p) for c, keys in enumerate(many.chunks) for p in range(len(keys))]


def test_a_page_says_nothing_of_a_run_in_its_markup(files: RunFiles) -> None:
    page = page_of(files.path)
    markup = re.sub(r'<script type="application/octet-stream".*?</script>', "", page).replace(assets().script, "")
    for text in HOSTILE:
        assert text not in page and html.escape(text) not in markup
    assert page.count("<script>") == 1
    assert not re.search(r'(src|href)="(?!data:,)', page)


def test_the_policy_allows_the_pages_own_script_and_style_alone(files: RunFiles) -> None:
    page = page_of(files.path)
    policy = html.unescape(re.findall(r'Content-Security-Policy" content="([^"]*)"', page)[0])
    for tag, kind in (("script", "script-src"), ("style", "style-src")):
        (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.S)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind} 'sha256-{digest}'" in policy.split("; ")
    assert policy.startswith("default-src 'none'; ")
    assert "connect-src 'none'" in policy and "unsafe" not in policy


def test_the_name_of_a_run_is_escaped(files: RunFiles, tmp_path: Path) -> None:
    run = tmp_path / "<img src=x onerror=alert(1)>"
    shutil.copytree(files.path, run)
    assert "<title>&lt;img src=x onerror=alert(1)&gt; - Assay</title>" in page_of(run)


def test_runs_of_one_name_are_told_apart() -> None:
    assert run_names([Path("/a/x"), Path("/b/y")]) == ["x", "y"]
    assert run_names([Path("/a/x"), Path("/b/x")]) == ["a/x", "b/x"]


def test_equal_runs_have_equal_pages(files: RunFiles) -> None:
    assert page_of(files.path) == page_of(files.path)


def test_a_line_that_is_being_written_is_left_out(files: RunFiles, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(files.path, run)
    whole = (run / "traces.jsonl").read_bytes()
    last = whole.rstrip(b"\n").rindex(b"\n") + 1
    (run / "traces.jsonl").write_bytes(whole[: last + 40])
    assert read_catalogue(run).rollouts == read_catalogue(files.path).rollouts - 1


def test_a_run_cut_after_it_was_indexed_is_refused(files: RunFiles, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(files.path, run)
    found = read_catalogue(run)
    (run / "traces.jsonl").write_bytes((run / "traces.jsonl").read_bytes()[:1000])
    with pytest.raises(RunDirectoryError, match=r"traces\.jsonl"):
        write_page([found], run / PAGE)
    assert [path.name for path in run.glob("view*")] == []


def test_numbers_that_json_does_not_have(tmp_path: Path) -> None:
    files = RunFiles(tmp_path / "run")
    score = Score("scored", 1 / 3, {"x": 1e-9}, {"loss": float("nan"), "deep": {"a": {"b": [1, {"c": None}]}}})
    files.step(0, [files.group("p", [[Said("a", score)], [Said("b", Score("scored", 0.0))]])])
    files.add("metrics.jsonl", [{"step": 1, "phase": "rl", "index": 1, "reward/mean": float("inf")}])
    data = blocks(page_of(files.path))
    assert data["index"]["runs"][0]["rollouts"]["reward"] == [0.333333, 0]
    assert data["chunk-0-0"][0]["rollouts"][0]["turns"][0]["score"]["evidence"]["loss"] is None


def test_text_from_outside_is_bounded() -> None:
    assert bounded("x" * MAX_TEXT) == "x" * MAX_TEXT
    assert bounded("x" * (MAX_TEXT + 1234)).endswith("\n[1,234 more characters are in the run's files]")
    assert bounded(list(range(MAX_ITEMS + 2)))[-1] == "2 more entries are in the run's files"
    assert len(bounded({str(i): i for i in range(10 * MAX_ITEMS)})) == MAX_ITEMS + 1
    nested: Any = "end"
    for _ in range(50):
        nested = [nested]
    assert "deeper levels" in json.dumps(bounded(nested))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@settings(deadline=None, max_examples=50)
@given(JSON)
def test_small_data_are_bounded_to_themselves(value: Any) -> None:
    text = json.dumps(value)
    if text.count("[") + text.count("{") < 8:
        assert bounded(value) == value


@settings(deadline=None, max_examples=50)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_rounding_keeps_six_digits(value: float) -> None:
    found = rounded(value)
    assert found == pytest.approx(value, rel=1e-5)
    assert rounded(found) == found


@settings(deadline=None, max_examples=50)
@given(st.text(max_size=2000))
def test_a_snippet_is_one_short_line(text: str) -> None:
    found = snippet(text)
    assert len(found) <= 120 and len(found.splitlines()) <= 1


def test_events_beyond_the_bound_are_counted(files: RunFiles) -> None:
    found = index_of("x", read_catalogue(files.path), [], [{"step": 1, "message": "m"}] * 1007)
    assert (len(found["events"]), found["more_events"]) == (1000, 7)


# The command


def test_the_command_writes_a_page(files: RunFiles, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "here.html"
    assert main(["view", str(files.path), "--output", str(output)]) == 0
    assert "67 rollouts" in capsys.readouterr().out
    assert set(blocks(output.read_text())) == {"index", "chunk-0-0"}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["{tmp}/none"], "holds no run"),
        (["{run}", "{tmp}/none"], "none holds no run"),
        (["{tmp}"], "holds no run"),
        (["{run}", "--serve", "--output", "x.html"], "do not go together"),
        (["{run}", "--port", "70000"], "--port 70000"),
        (["{run}", "learning_rate=1"], "'learning_rate=1' is a setting"),
        (["{run}", "--output", "{run}/no/such/folder/x.html"], "Cannot write the page"),
    ],
)
def test_the_command_refuses_in_one_line(
    arguments: list[str], says: str, files: RunFiles, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main(["view", *(a.format(tmp=tmp_path, run=files.path) for a in arguments)])
    said = capsys.readouterr().err.strip()
    assert status in (1, 2) and says in said and said.startswith("error: ") and "\n" not in said


def test_a_run_without_rollouts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    RunFiles(tmp_path / "run").add("traces.jsonl", [])
    assert main(["view", str(tmp_path / "run")]) == 1
    assert "no rollouts yet" in capsys.readouterr().err


def test_a_damaged_line_is_named(files: RunFiles, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    shutil.copytree(files.path, run)
    lines = (run / "traces.jsonl").read_bytes().splitlines(keepends=True)
    (run / "traces.jsonl").write_bytes(b"".join([*lines[:4], lines[4][:-9] + b"\n", *lines[5:]]))
    assert main(["view", str(run)]) == 1
    assert re.search(r"traces\.jsonl, line 5 is damaged", capsys.readouterr().err)
