"""What retrieval finds, what it costs, and what it may never show.

    python benchmarks/retrieval.py [--entries 20000] [--queries 300] [--seed 0] [--problems FILE.jsonl]

Entries are PyTorch modules made from distinct recipes: 2 to 5 of 52 operators in a row, so that thousands share parts
and many differ in order alone; a third are CUDA. A query is another spelling of an entry's recipe: functions, methods
or layers, operators or their functions, other names, sizes and constants, steps or one expression. Its known answer is
that entry. `shipped_recall_at_3` asks for the problems that come with Assay, which are in the index too, under other
names and constants.

The embedding model is made here: a random direction for each part of a name, the longer the rarer it is. It shows that
the way through sentence-transformers and FAISS works, and how far words without order lead; it says nothing of a model
that was trained on code.

`leaked`: for each of 100 problems the index also holds an untouched copy, one in another layout, one under other names
and constants, another spelling, and other code under its name. All 100 are excluded, each asks for 20 entries, and
whatever of these comes back is a leak. `wrongly_excluded` is the share of the other entries that the exclusion forbids,
of which those with equal operations in another order are the most. `--problems` gives problems in KernelBench's form:
how many are found under other names and constants, and which of their pairs are taken for one. The last line is one
JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

from assay.kernels.problems.sources import Problem, read_jsonl, read_shipped
from assay.retrieval.code_text import code_hash
from assay.retrieval.duplicates import near_duplicates, signature
from assay.retrieval.embeddings import SentenceTransformerEmbedder, embedded_text
from assay.retrieval.entries import Entry, Language
from assay.retrieval.exclusion import Exclusion, Screen
from assay.retrieval.index import Index, build_index, open_index
from common import machine, peak_rss_mb, summary
from support.embedding_models import write_word_model
from support.synthetic_problems import Recipe, disguised, recipes, write_module

K = 3
PLANTED = 100
ASKED = 20
ANOTHER = 10**6
"""Added to a seed for another spelling."""


def entry(code: str, name: str, language: Language = "triton") -> Entry:
    return Entry(name, language, code, f"# a kernel for {name}\n" * 20, code_hash(code), "synthetic", True, None)


def corpus(made: Sequence[Recipe], seed: int) -> list[Entry]:
    languages: tuple[Language, ...] = ("triton", "triton", "cuda")
    return [
        entry(write_module(recipe, seed + place), f"{place}", languages[place % 3]) for place, recipe in enumerate(made)
    ]


def recall(index: Index, asked: Sequence[tuple[str, Entry]]) -> tuple[float, list[float]]:
    """Share of queries whose entry is among the first K, and the milliseconds that each took."""
    found, took = 0, []
    for query, wanted in asked:
        started = time.perf_counter()
        hits = index.search(query, K, language=wanted.language)
        took.append(1000 * (time.perf_counter() - started))
        found += wanted in hits
    return found / len(asked), took


def planted(recipe: Recipe, place: int, seed: int) -> tuple[str, str, list[Entry]]:
    """A problem, its name, and entries that solve it."""
    code = write_module(recipe, seed + place)
    name = f"{place}_{''.join(part.title().replace('_', '') for part in recipe)}"
    other = write_module(("sort", "erf"), seed + place)
    copies = [
        entry(code, "copy"),
        entry("# another licence\n\n" + code.replace("    ", "\t"), "layout"),
        entry(disguised(code), "names"),
        entry(write_module(recipe, seed + place + ANOTHER), "spelling"),
        entry(other, f"level_1/{place + 7}_{name.partition('_')[2]}"),
    ]
    return name, code, copies


def leaks(entries: Sequence[Entry], made: Sequence[Recipe], seed: int, folder: Path) -> tuple[int, int, float]:
    """How many planted entries come back with the exclusion, how many without, and the share of others excluded."""
    problems = [planted(recipe, place, seed) for place, recipe in enumerate(made)]
    bad = {copy for _, _, copies in problems for copy in copies}
    build_index([*entries, *sorted(bad, key=lambda one: (one.name, one.code_hash))], folder)
    index = open_index(folder)
    excluded = Exclusion.of({name: code for name, code, _ in problems})
    leaked = sum(
        hit in bad for _, code, _ in problems for hit in index.search(code, ASKED, language="triton", exclude=excluded)
    )
    without = sum(hit in bad for _, code, _ in problems for hit in index.search(code, ASKED, language="triton"))
    screen = Screen(excluded)
    wrong = sum(screen.reason(one) is not None for one in entries)
    return leaked, without, wrong / len(entries)


def likeness(problems: Sequence[Problem]) -> dict[str, object]:
    """How many problems are found under other names and constants, and which pairs of them are taken for one."""
    made = {problem.key: signature(problem.code) for problem in problems}
    caught = sum(near_duplicates(made[p.key], signature(disguised(p.code))) for p in problems)
    pairs = [(a, b) for a, b in combinations(made, 2) if near_duplicates(made[a], made[b])]
    return {"problems": len(problems), "caught": caught, "pairs_taken_for_one": [f"{a} = {b}" for a, b in pairs]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=20_000)
    parser.add_argument("--queries", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--problems", type=Path)
    args = parser.parse_args()
    made = recipes(args.entries + PLANTED, args.seed)
    apart, made = made[:PLANTED], made[PLANTED:]
    entries = corpus(made, args.seed)
    shipped = [(disguised(p.code), entry(p.code, p.name)) for p in read_shipped()]
    everything = [*entries, *(one for _, one in shipped)]
    step = max(1, len(made) // args.queries)
    asked = [
        (write_module(made[place], args.seed + ANOTHER + place), entries[place]) for place in range(0, len(made), step)
    ][: args.queries]

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        started = time.perf_counter()
        build_index(everything, folder / "bm25")
        build_s = time.perf_counter() - started
        started = time.perf_counter()
        index = open_index(folder / "bm25")
        open_s = time.perf_counter() - started
        bm25_recall, took = recall(index, asked)
        shipped_recall, _ = recall(index, shipped)
        print(
            f"bm25: built in {build_s:.1f} s, recall@{K} {bm25_recall:.3f} of {len(asked)}, {summary(took)} ms a query"
        )

        write_word_model(folder / "model", (embedded_text(one.torch_code) for one in everything))
        embedder = SentenceTransformerEmbedder(str(folder / "model"), "cpu", 256)
        started = time.perf_counter()
        build_index(everything, folder / "embeddings", embedder)
        embedding_build_s = time.perf_counter() - started
        embedding_recall, embedding_took = recall(open_index(folder / "embeddings", device="cpu"), asked)
        print(f"embeddings: built in {embedding_build_s:.1f} s, recall@{K} {embedding_recall:.3f}")

        leaked, without, wrong = leaks(entries, apart, args.seed + 2 * ANOTHER, folder / "leaks")
        print(f"leaks: {leaked} of {PLANTED} x 5 planted entries come back ({without} without the exclusion)")
    likenesses = {"shipped": likeness(read_shipped())}
    if args.problems:
        likenesses["given"] = likeness(read_jsonl(args.problems))
    result = {
        "bm25_recall_at_3": bm25_recall,
        "embedding_recall_at_3": embedding_recall,
        "build_s": build_s,
        "query_ms": statistics.median(took),
        "leaked": leaked,
        "found_without_exclusion": without,
        "wrongly_excluded": wrong,
        "shipped_recall_at_3": shipped_recall,
        "queries": len(asked),
        "entries": len(everything),
        "open_s": open_s,
        "embedding_build_s": embedding_build_s,
        "embedding_query_ms": statistics.median(embedding_took),
        "likeness": likenesses,
        "peak_rss_mb": peak_rss_mb(),
        "machine": machine("bm25s", "faiss-cpu", "sentence-transformers"),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
