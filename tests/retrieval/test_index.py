"""An index on disk and what a search in it gives."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from assay.errors import ConfigError, DataError
from assay.retrieval import store
from assay.retrieval.exclusion import Exclusion, Screen
from assay.retrieval.index import Index, build_index, open_index
from assay.retrieval.ranking import FIRST_WINDOW, in_order
from assay.retrieval.store import MANIFEST, read_store
from assay.storage.files import sha256_file
from support.retrieval_entries import entry, small_index, synthetic
from support.synthetic_problems import write_module

MADE = synthetic(120)
ENTRIES = [made for _, made in MADE]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    return small_index(tmp_path_factory.mktemp("index") / "i", ENTRIES)


def test_entries_come_back_as_they_were(index: Index) -> None:
    assert len(index) == len(ENTRIES) and index.languages == ("triton", "cuda")
    found = index.hits(" ".join(made.torch_code for made in ENTRIES)[:40_000], 1000, language="triton")
    assert {hit.entry for hit in found} <= {made for made in ENTRIES if made.language == "triton"}
    assert len(found) > 60


def test_text_of_any_kind_comes_back(tmp_path: Path) -> None:
    odd = entry("torch.relu(x)  # \u2028 ключ \x00 \U0001f600\r\n", "näme", "cuda", 1.5)
    assert small_index(tmp_path / "i", [odd]).search("torch.relu(y)", 1, language="cuda") == [odd]


def test_another_spelling_of_a_problem_finds_it(index: Index) -> None:
    for place, (recipe, made) in enumerate(MADE):
        query = write_module(recipe, 5000 + place)
        assert made in index.search(query, 3, language=made.language), recipe


@pytest.mark.parametrize("language", ["triton", "cuda"])
def test_the_language_is_chosen_before_k_is_cut(tmp_path: Path, language: str) -> None:
    """All that resemble the query most are of the other language, and k are found all the same."""
    other = {"triton": "cuda", "cuda": "triton"}[language]
    near = [entry(write_module(("relu", "softmax"), seed), f"near{seed}", other) for seed in range(30)]  # type: ignore[arg-type]
    far = [entry(write_module(("relu", "cumsum", "sin"), seed), f"far{seed}", language) for seed in range(3)]  # type: ignore[arg-type]
    built = small_index(tmp_path / "i", [*near, *far])
    found = built.search(write_module(("relu", "softmax"), 99), 3, language=language)
    assert sorted(one.name for one in found) == ["far0", "far1", "far2"]


def test_what_is_excluded_is_passed_over_and_k_are_still_found(index: Index) -> None:
    recipe, made = MADE[0]
    query = write_module(recipe, 7)
    assert index.search(query, 3, language="triton")[0] == made
    excluded = Exclusion.of({"nothing": query})
    found = index.search(query, 3, language="triton", exclude=excluded)
    assert len(found) == 3 and made not in found
    everything = Exclusion(hashes=frozenset(one.code_hash for one in ENTRIES))
    assert index.search(query, 3, language="triton", exclude=everything) == []


def test_nothing_excluded_is_ever_shown(index: Index) -> None:
    excluded = Exclusion.of(
        {f"p{place}": write_module(recipe, 900 + place) for place, (recipe, _) in enumerate(MADE[::2])}
    )
    shown = Screen(excluded)
    for recipe, made in MADE:
        for found in index.search(write_module(recipe, 1), 10, language=made.language, exclude=excluded):
            assert shown.reason(found) is None
            assert found not in ENTRIES[::2]


def test_equal_scores_are_ordered_by_place(tmp_path: Path) -> None:
    same = [entry(write_module(("relu", "tanh"), 0), f"n{place}") for place in range(600)]
    built = small_index(tmp_path / "i", same)
    found = [hit.place for hit in built.hits(same[0].torch_code, 600, language="triton")]
    assert found == list(range(600))


def test_places_come_in_the_order_of_their_scores_however_many_are_asked_for() -> None:
    rng = np.random.default_rng(0)
    for size in (0, 1, FIRST_WINDOW - 1, FIRST_WINDOW, FIRST_WINDOW + 1, 5000):
        scores = rng.integers(-3, 12, size).astype(np.float32)
        wanted = [place for place in np.lexsort((np.arange(size), -scores)) if scores[place] > 0]
        assert [place for place, _ in in_order(scores)] == wanted


def test_a_query_without_a_known_word_finds_nothing(index: Index) -> None:
    for query in ("", "\x00", "# only a comment", "zzzzz_qqqqq()"):
        assert index.search(query, 3, language="triton") == []


def test_k_and_language_that_cannot_be(index: Index, tmp_path: Path) -> None:
    assert index.search(ENTRIES[0].torch_code, 0, language="triton") == []
    with pytest.raises(ConfigError, match="k=-1"):
        index.search("x", -1, language="triton")
    with pytest.raises(ConfigError, match=r"'tpu', but triton and cuda"):
        index.search("x", 1, language="tpu")
    triton = small_index(tmp_path / "i", [ENTRIES[0]])
    with pytest.raises(ConfigError, match="no entry whose language is 'cuda', but triton"):
        triton.search("x", 1, language="cuda")


def test_searches_at_once_agree(index: Index) -> None:
    queries = [write_module(recipe, 3) for recipe, _ in MADE[:20]]
    alone = [index.search(query, 5, language="triton") for query in queries]
    together: dict[int, list] = {}

    def search(place: int) -> None:
        together[place] = index.search(queries[place], 5, language="triton")

    threads = [threading.Thread(target=search, args=(place,)) for place in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [together[place] for place in range(20)] == alone


BUILD = """
import sys
from pathlib import Path
from support.retrieval_entries import synthetic
from assay.retrieval.index import build_index
print(build_index([made for _, made in synthetic(int(sys.argv[2]), int(sys.argv[3]))], Path(sys.argv[1])).fingerprint)
"""


def build_apart(folder: Path, count: int, seed: int = 0, **environment: str) -> subprocess.Popen[str]:
    tests = Path(__file__).parents[1]
    env = {**os.environ, "PYTHONPATH": str(tests), **environment}
    command = [sys.executable, "-c", BUILD, str(folder), str(count), str(seed)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


def test_equal_entries_give_equal_files_in_every_process(tmp_path: Path) -> None:
    said = []
    for seed in ("1", "2"):
        done = build_apart(tmp_path / seed, 50, PYTHONHASHSEED=seed)
        out, err = done.communicate(timeout=100)
        assert done.returncode == 0, err
        said.append(out.strip())
    assert said[0] == said[1] == open_index(tmp_path / "1").fingerprint
    other = build_index(ENTRIES[:49], tmp_path / "other")
    assert other.fingerprint != said[0]


def test_a_kill_leaves_the_old_index_or_the_new_one(tmp_path: Path) -> None:
    """Two contents are built over each other by processes that are killed at some moment; one is always whole."""
    folder = tmp_path / "i"
    known = {build_index([made for _, made in synthetic(900, seed)], folder).fingerprint for seed in (0, 1)}
    rng = random.Random(0)
    killed = 0
    for turn in range(8):
        started = build_apart(folder, 900, turn % 2)
        deadline = time.monotonic() + 60
        while not any(path.name.startswith(".building-") for path in folder.iterdir()) and started.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        time.sleep(rng.uniform(0, 0.4))
        started.send_signal(signal.SIGKILL)
        killed += started.wait() == -signal.SIGKILL
        started.communicate()
        assert open_index(folder).fingerprint in known
    assert killed >= 2
    assert build_index([made for _, made in synthetic(900, 0)], folder).fingerprint in known
    left = {path.name for path in folder.iterdir()} - {MANIFEST, ".lock", open_index(folder).fingerprint[:16]}
    assert left == set()


def test_a_build_that_fails_leaves_no_folder_of_its_own(tmp_path: Path) -> None:
    def fail(folder: Path) -> dict[str, object]:
        raise DataError("no ranking")

    for place in (tmp_path / "new", tmp_path):
        with pytest.raises(DataError, match="no ranking"):
            store.write_store(place, ENTRIES[:1], fail)
    assert [path.name for path in tmp_path.iterdir()] == [".lock"], "a folder that was there stays"


class Killed(BaseException):
    """Nothing may catch it."""


@pytest.mark.parametrize("step", range(1, 7))
def test_an_end_between_any_two_steps_leaves_a_whole_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    folder = tmp_path / "i"
    before = small_index(folder, ENTRIES[:40]).fingerprint
    inode = (folder / MANIFEST).stat().st_ino
    after = build_index(ENTRIES[40:], tmp_path / "other").fingerprint
    calls = 0

    def counted(real: Callable[..., object]) -> Callable[..., object]:
        def call(*given: object, **named: object) -> object:
            nonlocal calls
            calls += 1
            if calls == step:
                raise Killed
            return real(*given, **named)

        return call

    for module, name in ((os, "rename"), (os, "replace"), (shutil, "rmtree"), (store, "sync_directory")):
        monkeypatch.setattr(module, name, counted(getattr(module, name)))
    with pytest.raises(Killed):
        build_index(ENTRIES[40:], folder)
    monkeypatch.undo()
    # Steps: rmtree of what is in the way, rename, sync, replace, sync, and the removal of what is old.
    assert open_index(folder).fingerprint == (before if step <= 4 else after)
    assert ((folder / MANIFEST).stat().st_ino == inode) is (step <= 4)


def test_an_open_index_goes_on_when_another_takes_its_place(tmp_path: Path) -> None:
    before = small_index(tmp_path / "i", ENTRIES[:60])
    found = before.search(ENTRIES[0].torch_code, 5, language="triton")
    after = small_index(tmp_path / "i", ENTRIES[60:])
    assert before.search(ENTRIES[0].torch_code, 5, language="triton") == found
    assert after.fingerprint != before.fingerprint


def test_building_the_same_again_keeps_what_is_there_and_mends_what_is_damaged(tmp_path: Path) -> None:
    first = small_index(tmp_path / "i", ENTRIES)
    data = tmp_path / "i" / first.fingerprint[:16]
    (data / "words.json").write_bytes(b"[]")
    with pytest.raises(DataError, match="damaged"):
        open_index(tmp_path / "i")
    assert small_index(tmp_path / "i", ENTRIES).fingerprint == first.fingerprint


def data_folder(folder: Path) -> Path:
    (found,) = (path for path in folder.iterdir() if len(path.name) == 16)
    return found


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def edit_manifest(folder: Path, change: Callable[[dict], object]) -> None:
    said = json.loads((folder / MANIFEST).read_text())
    change(said)
    (folder / MANIFEST).write_text(json.dumps(said))


FILES = ["entries.jsonl", "entry_starts.npy", "word_starts.npy", "word_entries.npy", "word_scores.npy", "words.json"]
DAMAGE: dict[str, Callable[[Path], object]] = {
    **{f"a bit of {name}": lambda folder, name=name: flip(data_folder(folder) / name) for name in FILES},
    **{f"no {name}": lambda folder, name=name: (data_folder(folder) / name).unlink() for name in FILES},
    "short": lambda folder: os.truncate(data_folder(folder) / "entries.jsonl", 100),
    "longer": lambda folder: (data_folder(folder) / "entries.jsonl").open("ab").write(b"{}\n"),
    "half a manifest": lambda folder: (folder / MANIFEST).write_bytes((folder / MANIFEST).read_bytes()[:200]),
    "deep manifest": lambda folder: (folder / MANIFEST).write_text("[" * 100_000),
    "other spans": lambda folder: edit_manifest(folder, lambda said: said.update(spans={"cuda": [0, 120]})),
    "spans that are none": lambda folder: edit_manifest(folder, lambda said: said["spans"].update(triton="all")),
    "another count": lambda folder: edit_manifest(folder, lambda said: said.update(entries=121)),
    "no files": lambda folder: edit_manifest(folder, lambda said: said.update(files={})),
    "a way out": lambda folder: edit_manifest(folder, lambda said: said.update(folder="../../etc")),
    "a file outside": lambda folder: edit_manifest(folder, lambda said: said["files"].update({"../x.json": {}})),
    "another ranking": lambda folder: edit_manifest(folder, lambda said: said["ranking"].update(kind="oracle")),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=list(DAMAGE))
def test_a_damaged_index_is_one_clear_error(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    folder = tmp_path / "i"
    build_index(ENTRIES, folder)
    damage(folder)
    with pytest.raises(DataError, match=r"is damaged: .*assay index build --output"):
        open_index(folder)


def test_no_index_a_foreign_folder_and_another_version(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no index at .*nothing. Build one: assay index build --output"):
        open_index(tmp_path / "nothing")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "index.faiss").write_bytes(b"x")
    with pytest.raises(DataError, match=r"is no index of Assay: it has no manifest.json. Build one"):
        open_index(tmp_path / "foreign")
    (tmp_path / "foreign" / MANIFEST).write_text('{"name": "app"}')
    with pytest.raises(DataError, match=r"is no index of Assay: its manifest.json does not say so"):
        open_index(tmp_path / "foreign")
    build_index(ENTRIES[:3], tmp_path / "old")
    edit_manifest(tmp_path / "old", lambda said: said.update(version=99))
    with pytest.raises(
        DataError, match=r"has version 99, and this Assay reads version 1. Build one: assay index build"
    ):
        open_index(tmp_path / "old")
    assert len(small_index(tmp_path / "old", ENTRIES[:2])) == 2


def test_arrays_that_do_not_belong_together_are_found_even_with_right_checksums(tmp_path: Path) -> None:
    """Files and checksums that agree may still come from anywhere."""
    for name, change in {
        "word_entries.npy": lambda array: array + 1000,
        "word_scores.npy": lambda array: array * np.float32("nan"),
        "word_starts.npy": lambda array: array[::-1],
    }.items():
        folder = tmp_path / name
        build_index(ENTRIES, folder)
        _forge(folder, name, change)
        with pytest.raises(DataError, match="damaged: a file cannot be read"):
            open_index(folder)
    folder = tmp_path / "objects"
    build_index(ENTRIES, folder)
    _forge(folder, "word_scores.npy", lambda array: np.array([{}], dtype=object))
    with pytest.raises(DataError, match=r"damaged: .*Python objects in dtype"):
        open_index(folder)


def _forge(folder: Path, name: str, change: Callable[[np.ndarray], np.ndarray]) -> None:
    """Change an array, and give it the checksum that it then has."""
    manifest = read_store(folder)
    file = folder / manifest.folder / name
    changed = change(np.load(file))
    np.save(file, changed, allow_pickle=changed.dtype == object)
    files = {**manifest.files, name: {"bytes": file.stat().st_size, "sha256": sha256_file(file)}}
    forged = replace(manifest, files=files)
    new = replace(forged, folder=forged.fingerprint[:16])
    os.rename(folder / manifest.folder, folder / new.folder)
    edit_manifest(folder, lambda said: said.update(files=dict(files), folder=new.folder))


def test_a_folder_that_is_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    with pytest.raises(DataError, match=r"holds thesis.tex and no index, so it is left alone"):
        build_index(ENTRIES, tmp_path / "mine")
    with pytest.raises(DataError, match="is a file, and an index is a folder"):
        build_index(ENTRIES, tmp_path / "mine" / "thesis.tex")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.tex"]


def test_a_folder_that_cannot_be_written_to_and_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"cannot write the index .*Not a directory"):
        (tmp_path / "file").write_text("")
        build_index(ENTRIES, tmp_path / "file" / "i")
    before = small_index(tmp_path / "i", ENTRIES[:5]).fingerprint
    full = OSError(28, "No space left on device")
    monkeypatch.setattr("assay.retrieval.store.sync_file", lambda path: (_ for _ in ()).throw(full))
    with pytest.raises(DataError, match=r"No space left on device. An index that was there is as it was"):
        build_index(ENTRIES, tmp_path / "i")
    assert open_index(tmp_path / "i").fingerprint == before


def test_an_index_needs_entries_with_words(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no entry to build an index from"):
        build_index([], tmp_path / "i")
    with pytest.raises(DataError, match="no problem has a word"):
        build_index([entry("# nothing")], tmp_path / "i")
    assert not (tmp_path / "i" / MANIFEST).exists()
