"""How long a run's page takes to open in a real browser.

    python benchmarks/viewer.py [--rollouts 10000] [--repeats 9] [--keep DIR]

Writes a run in the format of training: groups of 16 rollouts, prompts of about 1 kB, answers of 1-4 kB of words,
numbers and code, reward parts, a judge's reply for each, and values per token for 2 groups of each step. Makes its page
(`assay view`), and opens it in headless Chromium, each time in a new process of the browser with an empty profile.
`open_s` is the time from the start of loading to a list of groups that is painted and answers, on the page's own clock
(`performance.now`); `worst_open_s` is the longest of all repeats, `shown_s` the time until the first group's answers
stand beside the list, `search_s` the time of a search through all texts for a word that few have. The last line is one
JSON object.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from assay.types import Score
from assay.viewer.catalogue import read_catalogue
from assay.viewer.page import PAGE, write_page
from common import machine
from support.browser import chromium, open_browser
from support.viewer_runs import RunFiles, Said

GROUP, GROUPS_PER_STEP = 16, 25
CLOCK = "document.documentElement.dataset"
RARE = "heliotrope"
"""A word of one answer in a thousand."""


def words(rng: random.Random, characters: int, lexicon: Sequence[str]) -> str:
    """Text of about so many characters, in which common words are common, as in language."""
    found: list[str] = []
    size = 0
    while size < characters:
        word = lexicon[min(len(lexicon) - 1, int(rng.paretovariate(0.6)) - 1)]
        word = f"{rng.randint(2, 9999)}" if rng.random() < 0.06 else word
        found.append(word + rng.choice(["", "", "", "", "", ",", ".", "\n"]))
        size += len(found[-1]) + 1
    return " ".join(found)


def lexicon_of(rng: random.Random, size: int = 6000) -> list[str]:
    """Words that a compressor has not seen."""
    syllables = [a + b for a in "bcdfghklmnprstvw" for b in ("a", "e", "i", "o", "u", "an", "er", "it", "os")]
    return ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(size)]


def answers(rng: random.Random, lexicon: Sequence[str]) -> Iterator[list[Said]]:
    """The answers of one group."""
    for _ in range(GROUP):
        value = round(rng.random(), 3)
        text = words(rng, rng.randint(1000, 4000), lexicon) + (f" {RARE}" if rng.random() < 0.001 else "")
        evidence = {"votes": [round(10 * value)], "rationales": [words(rng, 200, lexicon)], "judges": ["judge-1"]}
        parts = {"correct": float(value > 0.5), "style": round(rng.random(), 3), "length": -round(rng.random(), 3)}
        yield [Said(text, Score("scored", value, parts, evidence, fingerprint="judge:c6a2a154797fe384"))]


def write_files(path: Path, rollouts: int, seed: int = 0) -> None:
    """The run."""
    rng = random.Random(seed)
    lexicon, files, left, step = lexicon_of(rng), RunFiles(path), rollouts // GROUP, 0
    while left > 0:
        count = min(GROUPS_PER_STEP, left)
        prompts = (words(rng, 1000, lexicon) for _ in range(count))
        files.step(step, [files.group(prompt, list(answers(rng, lexicon)), rng.choice("abc")) for prompt in prompts])
        left, step = left - count, step + 1


def measure(browser_path: str, page: Path) -> tuple[float, float, float]:
    """Seconds to the list, to the first answers, and of a search, in a browser that has just been started."""
    with open_browser(browser_path) as browser:
        tab = browser.tab()
        tab.open(page.resolve().as_uri())
        tab.until(f"{CLOCK}.listed")
        listed, ready = (float(value) / 1000 for value in tab.run(f"[{CLOCK}.listed, {CLOCK}.ready]"))
        started = time.perf_counter()
        tab.run(f"location.hash = 'q={RARE}'")
        tab.until("document.querySelector('#found').dataset.done === 'true' && document.querySelector('.card mark')")
        return listed, ready, time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rollouts", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="write the run and its page here, and keep them")
    args = parser.parse_args()
    browser = chromium()
    if browser is None:
        raise SystemExit("error: no Chromium here, and the page is opened in a real one: apt-get install chromium")
    with tempfile.TemporaryDirectory() as folder:
        run = args.keep or Path(folder) / "run"
        if run.exists():
            raise SystemExit(f"error: {run} is there already, and the run would be added to it. Name a new folder.")
        write_files(run, args.rollouts)
        started = time.perf_counter()
        catalogue = read_catalogue(run)
        size = write_page([catalogue], run / PAGE)
        written_s = time.perf_counter() - started
        times = [measure(browser, run / PAGE) for _ in range(args.repeats)]
        listed, ready, searched = (list(column) for column in zip(*times, strict=True))
        result = {
            "rollouts": catalogue.rollouts,
            "open_s": round(statistics.median(listed), 3),
            "worst_open_s": round(max(listed), 3),
            "shown_s": round(statistics.median(ready), 3),
            "search_s": round(statistics.median(searched), 3),
            "file_mb": round(size / 1e6, 2),
            "traces_mb": round((run / "traces.jsonl").stat().st_size / 1e6, 2),
            "write_s": round(written_s, 2),
            "repeats": args.repeats,
            **machine(),
        }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
