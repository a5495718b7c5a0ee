"""The page of `assay view` in a real browser: what it shows, finds and lets through, and what stays text."""

from __future__ import annotations

import re
import shutil
import threading
from pathlib import Path

import pytest

from assay.viewer.catalogue import read_catalogue
from assay.viewer.page import PAGE, write_page
from assay.viewer.server import ViewerServer
from support.browser import Browser, Tab
from support.recorded_run import edit
from support.viewer_runs import HOSTILE, RunFiles


@pytest.fixture(scope="module")
def tab(browser: Browser) -> Tab:
    return browser.tab()


def hash_of(tab: Tab) -> dict[str, str]:
    return dict(tab.run("Object.fromEntries(new URLSearchParams(location.hash.slice(1)))"))


def asked_for(tab: Tab) -> set[str]:
    """Every address that the page loaded or tried to load."""
    return {event["request"]["url"].partition("#")[0] for event in tab.happened("Network.requestWillBeSent")}


def passing(tab: Tab) -> list[str]:
    return tab.texts('.card[data-passes="true"] .which')


def test_it_opens_with_the_first_group_beside_the_list(tab: Tab, page: str) -> None:
    tab.open(page)
    assert tab.text("h1") == "first"
    assert tab.text("#found") == "25 groups, 67 rollouts"
    assert tab.text("h2") == "Step 0, group 0"
    assert "RL batch 1" in tab.text("main"), "counted from 1, as the console and checkpoints count batches"
    assert tab.texts(".card .reward") == ["0", "0.2"]
    assert [text[:3] for text in tab.texts(".card .advantage")] == ["\N{MINUS SIGN}0.", "+0."]
    assert tab.texts(".card .text:not(.quote)") == ["It is 0.", "One more."]
    assert tab.texts(".card .parts .name")[:2] == ["correct", "length"]
    assert not tab.happened("Runtime.exceptionThrown")


def test_a_link_leads_to_a_group(tab: Tab, page: str) -> None:
    tab.open(f"{page}#step=3&group=2&split=train&sample=1&evidence=1")
    assert tab.text("h2") == "Step 3, group 2"
    assert tab.text(".row.open .snippet") == "Write a kernel."
    assert tab.texts(".card.chosen .which") == ["#11 token"]
    assert tab.run("document.querySelector('.card .evidence').open") is True


def test_a_link_to_what_is_not_there_opens_the_nearest_step(tab: Tab, page: str) -> None:
    tab.open(f"{page}#step=999&group=77&status=%3Cb%3E&reward=x..y")
    assert "No group passes" in tab.text("#group")
    tab.open(f"{page}#step=999&group=77")
    assert tab.text("h2").startswith("Step 5,")


def test_a_step_that_is_not_committed_is_said_to_be(tab: Tab, files: RunFiles, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(files.path, run)
    lines = (run / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    (run / "ledger.jsonl").write_bytes(b"".join(lines[:4]))  # the start and steps 0 to 2
    write_page([read_catalogue(run)], run / PAGE)
    for step, said in ((2, []), (3, ["step not committed"])):
        tab.open(f"{(run / PAGE).as_uri()}#step={step}&group=0&split=train")
        assert [text for text in tab.texts(".stats .flag") if "committed" in text] == said


def test_what_was_thought_stands_over_the_answer_and_is_found(tab: Tab, files: RunFiles, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(files.path, run)
    edit(run, "traces.jsonl", 1, {"thought": "let me ponder <b>this</b>"})
    write_page([read_catalogue(run)], run / PAGE)
    tab.open((run / PAGE).as_uri())
    assert tab.texts(".card .message") == ["thoughtlet me ponder <b>this</b>"]
    tab.open(f"{(run / PAGE).as_uri()}#q=ponder")
    tab.until("document.getElementById('found').textContent.startsWith('1 ')")


def test_evidence_is_said_in_words(tab: Tab, page: str) -> None:
    tab.open(f"{page}#step=3&group=2&split=train&evidence=1")
    assert "Compiler: error" in tab.texts(".evidence h5")
    assert "tl.sigmoid(x)\n       ^" in tab.text(".evidence .judged .quote")
    assert tab.text(".complaint.errored") == "no answer in 60 stimeout"
    tab.open(f"{page}#step=1&group=0&split=train&evidence=1")
    assert tab.text(".evidence h5") == "Judge: judge-1"
    assert tab.text(".vote") == "vote 0"
    assert tab.text(".reply .quote") == "It is right."
    assert "{" not in tab.text("#group")


def test_turns_stand_in_order_with_what_was_said_between(tab: Tab, page: str) -> None:
    tab.open(f"{page}#step=2&group=3&split=train")
    assert tab.texts("#sample-0-0 h4") == ["Turn 10.25", "Turn 20.5"]
    assert tab.texts("#sample-0-0 pre.text") == [
        "I look under the mat.",
        "user: There is a brass key.\n",
        "I take the key.",
    ]
    assert "ended before its first answer" in tab.text("#sample-0-1")


@pytest.mark.parametrize(
    ("given", "groups", "answers"),
    [
        ("steps=2-3", 8, ["#02 tokens", "#13 tokens"]),
        ("splits=eval", 1, ["#01 token"]),
        ("tag=kernels", 6, ["#02 tokens", "#11 token", "#21 token"]),
        ("status=errored", 12, ["#11 token"]),
        ("status=invalid,truncated", 6, ["#02 tokens", "#21 token"]),
        ("reward=0.55..0.7", 2, ["#13 tokens"]),
        ("q=PLUS 1", 6, ["#02 tokens", "#13 tokens"]),
        ("q=brass", 6, ["#02 turns, 10 tokens"]),
        ("q=no attribute", 6, ["#02 tokens"]),
        ("q=nowhere to be found", 0, []),
    ],
)
def test_filters(tab: Tab, page: str, given: str, groups: int, answers: list[str]) -> None:
    tab.open(f"{page}#{given}")
    assert tab.text("#found").startswith(f"{groups} group")
    if groups and "errored" not in given:
        assert [re.sub(r"\s+", " ", text) for text in passing(tab)] == answers


def test_what_is_searched_for_is_typed_and_marked(tab: Tab, page: str) -> None:
    tab.open(page)
    tab.press("/")
    assert tab.run("document.activeElement.id") == "q"
    tab.call("Input.insertText", text="One more")
    tab.until("document.querySelector('.card mark') && document.querySelector('#found').dataset.done === 'true'")
    assert set(tab.texts(".card mark")) == {"One more"}
    assert tab.run("document.querySelectorAll('.card.faint').length") == 1
    assert hash_of(tab)["q"] == "One more"


def test_the_keyboard_goes_through_groups_and_steps(tab: Tab, page: str) -> None:
    tab.open(page)
    seen = []
    for key in ("ArrowDown", "ArrowDown", "ArrowUp", "ArrowRight", "ArrowRight", "ArrowLeft"):
        tab.press(key)
        seen.append(tuple(hash_of(tab)[name] for name in ("step", "group")))
    assert seen == [("0", "1"), ("0", "2"), ("0", "1"), ("1", "0"), ("2", "0"), ("1", "0")]
    tab.press("e")
    assert hash_of(tab)["evidence"] == "1"


def test_tokens_are_shaded_by_what_they_trained_with(tab: Tab, page: str) -> None:
    tab.open(f"{page}#step=4&group=0&split=train&shade=advantages")
    tab.until("document.querySelector('.tokens .up') && document.querySelector('.tokens .down')")
    assert tab.texts(".tokens")[1] == "One more."
    assert tab.run("document.querySelector('#sample-0-0 .tokens .up') === null")
    tab.run("document.querySelector('.tokens .up').dispatchEvent(new MouseEvent('mouseover', { bubbles: true }))")
    assert {"advantage", "log-ratio", "log-probability", "probability"} == set(tab.texts("#tip dt"))
    assert "pushed up" in tab.text(".scale")
    tab.open(f"{page}#step=4&group=2&split=train&shade=advantages")
    assert tab.texts(".tokens") == []


def test_only_the_rows_in_sight_are_in_the_list(tab: Tab, page: str) -> None:
    tab.open(page)
    rows = len(tab.texts(".row"))
    assert 5 < rows < 25
    tab.run("document.querySelector('#list').scrollTop = 1e6")
    tab.until("[...document.querySelectorAll('.row .snippet')].some((n) => n.textContent === 'What is 40 plus 2?')")
    assert len(tab.texts(".row")) < 25


def test_the_slider_and_the_curve_open_steps(tab: Tab, page: str) -> None:
    tab.open(page)
    tab.run("document.querySelector('#slider').value = 4")
    tab.run("document.querySelector('#slider').dispatchEvent(new Event('input'))")
    assert hash_of(tab)["step"] == "4"
    assert tab.run("document.querySelectorAll('#curve .line').length") == 1
    assert tab.run("document.querySelectorAll('#curve .dot').length") == 1
    assert "Entropy fell." in tab.text("#curve .alarm title")
    assert "Entropy fell." in tab.text("#alarms")


def test_what_others_said_stays_text(tab: Tab, page: str) -> None:
    tab.open(f"{page}#step=1&group=1&split=train&evidence=1")
    assert tab.texts("#group .card .text:not(.quote)")[:2] == list(HOSTILE[:2])
    assert tab.texts(".reply .quote")[:2] == list(HOSTILE[:2])
    assert tab.text("#prompt .text") == HOSTILE[0]
    assert tab.texts("#group .card .text:not(.quote)")[2] == "⟨ESC⟩[31mred⟨ESC⟩]0;owned⟨BEL⟩ and ⟨U+202E⟩gnp.exe"
    assert tab.run("document.title") == "first - Assay"
    assert tab.run("document.querySelectorAll('#app script, #app img, #app iframe, #app b.bold').length") == 0
    assert not tab.happened("Page.javascriptDialogOpening")
    assert asked_for(tab) <= {page, "data:,"}


def test_its_policy_stops_markup_that_got_in(tab: Tab, page: str) -> None:
    tab.open(page)
    with pytest.raises(AssertionError, match="TrustedHTML"):
        tab.run("document.body.innerHTML = '<img src=x onerror=alert(1)>'")
    tab.run(
        "void document.body.append(Object.assign(document.createElement('img'), { src: 'https://example.org/x.png' }))"
    )
    with pytest.raises(AssertionError):
        tab.run("document.body.append(Object.assign(document.createElement('script'), { textContent: 'alert(2)' }))")
    with pytest.raises(AssertionError):
        tab.run("fetch('https://example.org/')")
    tab.until("true")
    assert not tab.happened("Page.javascriptDialogOpening")


def test_two_runs_side_by_side(tab: Tab, files: RunFiles, other: RunFiles) -> None:
    output = files.path.parent / "two.html"
    write_page([read_catalogue(files.path), read_catalogue(other.path)], output)
    tab.open(f"{output.as_uri()}#step=4&group=0&split=train")
    assert tab.texts(".run h3") == ["first", "second"]
    assert "moved by \N{MINUS SIGN}2" in tab.text("#who")
    assert tab.texts(".run .text:not(.quote)") == ["It is 4.", "One more."] * 2
    assert [tab.texts(f'.run[data-run="{run}"] .reward') for run in (0, 1)] == [["0", "0.6"], ["0", "0.8"]]
    assert tab.run("document.querySelectorAll('#curve .line').length") == 2
    tab.open(f"{output.as_uri()}#step=4&group=3&split=train")
    assert "not in this run" in tab.text('.run[data-run="1"]')
    tab.open(f"{output.as_uri()}#only=both&sort=-gap")
    assert tab.text("#found").startswith("15 groups")
    assert tab.text("h2") == "Step 4, group 0"


def test_a_served_page_asks_its_server_for_texts(tab: Tab, files: RunFiles) -> None:
    with ViewerServer([read_catalogue(files.path)]) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            tab.open(f"{server.url}#step=2&group=0&q=one more")
            assert tab.text("h2") == "Step 2, group 0"
            assert tab.text("#found") == "6 groups, 6 rollouts"
            assert {f"{server.url}chunk/0/0"} <= asked_for(tab) <= {server.url, f"{server.url}chunk/0/0", "data:,"}
        finally:
            server.shutdown()
            thread.join()


def test_a_page_that_is_not_whole_says_so(tab: Tab, page: str, files: RunFiles) -> None:
    whole = (files.path.parent / PAGE).read_bytes()
    cut = files.path.parent / "cut.html"
    cut.write_bytes(whole[: whole.index(b'id="chunk-0-0"') - 40])
    tab.open(cut.as_uri() + "#q=")
    tab.until("document.querySelector('#group .empty')")
    assert "not whole" in tab.text("#group")
