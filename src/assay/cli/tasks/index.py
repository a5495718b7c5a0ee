"""`assay index`: build an index of solved problems to show in prompts, or search one."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from assay.cli.options import no_settings
from assay.errors import ConfigError, DataError
from assay.retrieval.corpora import MAX_ENTRIES, Reading, best_of_each, corpus_of, entries_of
from assay.retrieval.embeddings import SentenceTransformerEmbedder
from assay.retrieval.entries import LANGUAGES
from assay.retrieval.exclusion import Exclusion
from assay.retrieval.index import Hit, Index, build_index, open_index
from assay.terminal import inert

DEFAULT_PATH = Path("kernel_rag_index")
DEFAULT_CORPORA = ("kernelbook", "ai-cuda-engineer")
MAX_QUERY_BYTES = 1_000_000


def arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument("action", choices=("build", "search"), help="what to do")
    parser.add_argument("--language", choices=LANGUAGES, help="of the kernels (build: both; search: triton)")
    parser.add_argument("--model", help="a sentence-transformers model: a folder, or a name on the hub")
    parser.add_argument("--device", help="where the model runs: cpu, cuda, mps (default: what there is)")
    build = parser.add_argument_group("build")
    build.add_argument("--output", "-o", type=Path, default=DEFAULT_PATH, metavar="DIR", help="default %(default)s")
    build.add_argument(
        "--corpus",
        action="append",
        default=[],
        metavar="NAME[:PATH]|PATH",
        help=f"a data set, from the hub or a local copy, or a file of your own; may be repeated (default: "
        f"{' and '.join(DEFAULT_CORPORA)})",
    )
    build.add_argument("--levels", type=_levels, default=(), metavar="1,2,3", help="of ai-cuda-engineer (default: all)")
    build.add_argument("--include-incorrect", action="store_true", help="also kernels that the data set says are wrong")
    build.add_argument(
        "--per-problem",
        type=_positive,
        default=1,
        metavar="N",
        help="kernels of a problem, fastest first (default 1)",
    )
    build.add_argument("--max-entries", type=_positive, default=MAX_ENTRIES, metavar="N", help="of one corpus")
    build.add_argument("--batch-size", type=_positive, default=32, metavar="N", help="texts the model reads at once")
    search = parser.add_argument_group("search")
    search.add_argument("--index", type=Path, default=DEFAULT_PATH, metavar="DIR", help="default %(default)s")
    search.add_argument("--query", metavar="FILE", help="a problem's code; - for standard input")
    search.add_argument("-k", type=_positive, default=3, metavar="N", help="entries to show (default %(default)s)")
    search.add_argument(
        "--exclude", action="append", default=[], type=Path, metavar="FILE", help="a problem not to show solutions of"
    )
    search.add_argument("--json", action="store_true", help="print one JSON array, with the code")
    parser.epilog = """\
  assay index build                                            KernelBook and the AI CUDA Engineer Archive, from the hub
  assay index build --corpus kernelbook:kernelbook.parquet     a local copy
  assay index build --corpus mine.jsonl --model BAAI/bge-code-v1
  assay index search --query problem.py --language triton --exclude problem.py
"""


def run(args: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Build or search."""
    no_settings(overrides, "index")
    return _build(args) if args.action == "build" else _search(args)


def _build(args: argparse.Namespace) -> int:
    languages = (args.language,) if args.language else LANGUAGES
    corpora = [corpus_of(text, args.levels) for text in args.corpus or DEFAULT_CORPORA]
    # Loaded first, since reading corpora takes minutes and a wrong name a second.
    embedder = SentenceTransformerEmbedder(args.model, args.device, args.batch_size) if args.model else None
    readings = [Reading(corpus, args.include_incorrect, args.max_entries) for corpus in corpora]
    read = []
    for reading in readings:
        read += [entry for entry in entries_of(reading) if entry.language in languages]
        print(inert(reading.summary()))
    entries = best_of_each(read, args.per_problem)
    manifest = build_index(entries, args.output, embedder, [reading.as_json() for reading in readings])
    held = ", ".join(f"{end - start:,} {language}" for language, (start, end) in manifest.spans.items())
    more = len(read) - len(entries)
    dropped = f"; {more:,} more kernels of the same problems were left out (--per-problem)" if more else ""
    print(inert(f"wrote {args.output}: {held}{dropped}. Ranked by {manifest.ranking['kind']}."))
    return 0


def _search(args: argparse.Namespace) -> int:
    if args.query is None:
        raise ConfigError("say what to search for: --query FILE with a problem's code, or --query - to read it.")
    query = _read(args.query)
    excluded = Exclusion.of({path.stem: _read(str(path)) for path in args.exclude})
    index = open_index(args.index, args.model, args.device)
    language = args.language or LANGUAGES[0]
    hits = index.hits(query, args.k, language=language, exclude=excluded)
    if args.json:
        print(json.dumps([{"score": hit.score, **hit.entry.as_json()} for hit in hits]))
    else:
        print(inert(_listing(index, hits)))
    return 0


def _listing(index: Index, hits: Sequence[Hit]) -> str:
    said = [f"{len(hits)} of {len(index):,} entries, ranked by {index.ranked_by}"]
    for number, hit in enumerate(hits, 1):
        entry = hit.entry
        fast = f", {entry.speedup:.2f}x" if entry.speedup is not None else ""
        said.append(f"{number}. {entry.name} ({entry.language}, {entry.source}{fast})  {hit.score:.3f}")
    return "\n".join(said)


def _read(name: str) -> str:
    """The text of a file, or of standard input.

    Raises:
        DataError: it cannot be read, or is no problem's code.
    """
    try:
        if name == "-":
            data = sys.stdin.buffer.read(MAX_QUERY_BYTES + 1)
        else:
            with open(name, "rb") as file:
                data = file.read(MAX_QUERY_BYTES + 1)
        if len(data) > MAX_QUERY_BYTES:
            raise DataError(f"{name} has more than {MAX_QUERY_BYTES:,} bytes, so it is not a problem's code.")
        return data.decode()
    except OSError as error:
        raise DataError(f"cannot read {name}: {error.strerror}. Check the path.") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{name} is not UTF-8 text, so it is not a problem's code.") from error


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 0 < int(text) <= 10**9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 on")
    return int(text)


def _levels(text: str) -> tuple[int, ...]:
    return tuple(map(_positive, text.split(",")))
