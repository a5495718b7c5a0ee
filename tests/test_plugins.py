"""Finding the code that a setting names, and what is said when it cannot be found."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from assay.errors import ConfigError
from assay.plugins import Kind, calling, digest, find, in_words, reference_to, source_file, source_files

CLASSES = Kind("thing", {"counter": "collections:Counter"}, lambda found: isinstance(found, type))


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "own_things.py"
    path.write_text("import math\nfrom neighbour import BASE\nclass Thing:\n    base = BASE\nlimit = 3\n")
    (tmp_path / "neighbour.py").write_text("BASE = 7\n")
    return path


def test_a_short_name_a_module_and_a_file(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find("counter", CLASSES, "key").__name__ == "Counter"
    assert find("fractions:Fraction", CLASSES, "key").__name__ == "Fraction"
    thing = find(f"{own}:Thing", CLASSES, "key")
    assert thing.base == 7
    assert find(f"{own}:Thing", CLASSES, "key") is thing, "a file is loaded once"
    monkeypatch.chdir(own.parent)
    assert find("own_things.py:Thing", CLASSES, "key") is thing
    assert CLASSES.canonical("own_things.py:Thing") == f"{own}:Thing"
    assert CLASSES.canonical("counter") == "counter"


def test_what_was_found_leads_back_to_its_reference(own: Path) -> None:
    for written in ("counter", "fractions:Fraction", f"{own}:Thing"):
        assert reference_to(find(written, CLASSES, "key"), CLASSES) == written
    assert source_file(f"{own}:Thing", CLASSES) == own
    assert source_file("counter", CLASSES) is None
    module = source_file("fractions:Fraction", CLASSES)
    assert module is not None and module.name == "fractions.py"


def test_a_row_of_a_table_and_what_is_no_class(tmp_path: Path) -> None:
    path = tmp_path / "tables.py"
    path.write_text("from decimal import Decimal\nONE = Decimal(1)\nTABLE = {'two': Decimal(2), 'text': 'no'}\n")
    numbers = Kind("number", {"two": f"{path}:TABLE.two"}, lambda found: type(found).__name__ == "Decimal")
    assert (find("two", numbers, "key"), find(f"{path}:ONE", numbers, "key")) == (2, 1)
    with pytest.raises(ConfigError, match=r"the number 'TABLE\.three' in .*tables\.py\. It has ONE\."):
        find(f"{path}:TABLE.three", numbers, "key")
    with pytest.raises(ConfigError, match=r"and TABLE\.text is a str\. It has ONE\."):
        find(f"{path}:TABLE.text", numbers, "key")


def test_a_changed_file_is_loaded_again(own: Path) -> None:
    before = find(f"{own}:Thing", CLASSES, "key")
    own.write_text("class Thing:\n    base = 8\n")
    after = find(f"{own}:Thing", CLASSES, "key")
    assert (before.base, after.base) == (7, 8)
    assert digest(own) and digest(own.with_name("no.py")) == ""


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("countre", "key=countre: looked for a thing of this name among counter. Did you mean counter?"),
        ("{own}", "which thing of that file? Put its name after a colon: {own}:Name."),
        ("{own}:", "which thing of that file?"),
        (
            "{folder}/none.py:Thing",
            "{folder}/none.py, which is not a file that can be read. That folder has neighbour.py",
        ),
        ("{folder}/no/none.py:Thing", "There is no Python file in that folder."),
        ("{own}:Thnig", "looked for the thing 'Thnig' in {own}. It has Thing."),
        ("{own}:limit", "looked for a thing in {own}, and limit is a int. It has Thing."),
        ("{own}:Thing.nothing", "looked for the thing 'Thing.nothing' in {own}"),
        ("no_such_module:Thing", "in the module no_such_module, which is not installed here. Install it"),
        ("fractions.no_such:Thing", "in the module fractions.no_such"),
    ],
)
def test_what_is_not_there(own: Path, reference: str, words: str) -> None:
    places = {"own": own, "folder": own.parent}
    with pytest.raises(ConfigError) as caught:
        find(reference.format(**places), CLASSES, "key")
    assert words.format(**places) in str(caught.value)
    assert str(caught.value).startswith("key=") and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1\ny = x / 0\n", "raises when it is loaded: line 2: ZeroDivisionError: division by zero"),
        ("x = (1\n", "line 1: SyntaxError"),
        ("import no_such_package\n", "line 1: ModuleNotFoundError: No module named 'no_such_package'"),
        ("import sys\n\nsys.exit(3)\n", "line 3: SystemExit: 3"),
    ],
)
def test_a_file_that_raises_is_named_with_its_line_and_can_be_mended(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "broken.py"
    path.write_text(text)
    modules = set(sys.modules)
    with pytest.raises(ConfigError) as caught:
        find(f"{path}:Thing", CLASSES, "key")
    assert words in str(caught.value) and str(path) in str(caught.value)
    assert not {name for name in set(sys.modules) - modules if "broken" in name}
    path.write_text("class Thing: pass\n")
    assert find(f"{path}:Thing", CLASSES, "key").__name__ == "Thing"


def test_a_module_that_raises_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "needs_more.py").write_text("import no_such_package\n")
    (tmp_path / "divides.py").write_text("x = 1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match=r"the module needs_more, which raises when it is loaded: .*no_such_package"):
        find("needs_more:Thing", CLASSES, "key")
    with pytest.raises(ConfigError, match="the module divides, which raises when it is loaded: ZeroDivisionError"):
        find("divides:Thing", CLASSES, "key")


def test_what_runs_is_the_source_and_no_bytecode_of_an_earlier_version(own: Path) -> None:
    import os
    import py_compile

    own.write_text("class Thing:\n    base = 1\n")
    py_compile.compile(str(own))
    then = own.stat()
    own.write_text("class Thing:\n    base = 2\n")  # of the same size, and soon of the same age
    os.utime(own, ns=(then.st_atime_ns, then.st_mtime_ns))
    assert find(f"{own}:Thing", CLASSES, "key").base == 2


def test_threads_see_a_file_only_once_it_is_loaded(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    path = tmp_path / "slow.py"
    path.write_text("import time\ntime.sleep(0.1)\nclass Thing: pass\n")
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: find(f"{path}:Thing", CLASSES, "key"), range(4)))
    assert len(set(found)) == 1


def test_files_that_a_file_imports_from_its_own_folder_belong_to_it(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (own.parent / "neighbour.py").write_text("def f():\n    from kit import tools\nBASE = 7\n")
    kit = own.parent / "kit"
    kit.mkdir()
    (kit / "__init__.py").write_text("")
    (kit / "tools.py").write_text("from . import parts\nimport own_things\n")
    (kit / "parts.py").write_text("x = (1\n")
    (own.parent / "unrelated.py").write_text("")
    near = [own.parent / "neighbour.py", kit / "__init__.py", kit / "tools.py", kit / "parts.py"]
    assert source_files(f"{own}:Thing", CLASSES) == [own, *sorted(near)]
    assert source_files("counter", CLASSES) == []
    (kit / "parts.py").write_text("")
    monkeypatch.syspath_prepend(str(own.parent))
    find("kit.tools:parts", Kind("module"), "key")
    assert set(source_files("kit.tools:parts", CLASSES)) == {own, *near}, "a module's files are those of its top folder"


def test_a_module_in_the_working_directory_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stands_here.py").write_text("class Thing: pass\n")
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place not in ("", str(tmp_path))])
    monkeypatch.chdir(tmp_path)
    assert find("stands_here:Thing", CLASSES, "key").__name__ == "Thing"


def test_what_a_user_s_code_raises_is_one_line_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "raising.py"
    path.write_text("import json\n\ndef f(text):\n    return json.loads(text)\n")
    raising = find(f"{path}:f", Kind("function"), "key")
    with pytest.raises(ConfigError) as caught, calling("Own.tasks()"):
        raising("{")
    said = str(caught.value)
    assert said.startswith("Own.tasks() raised json.decoder.JSONDecodeError: Expecting property name")
    assert said.endswith(f"({path}, line 4).") and "\n" not in said
    with pytest.raises(ConfigError, match=r"^mine$"), calling("Own.tasks()"):
        raise ConfigError("mine")
    assert len(in_words(ValueError("x" * 9999))) < 500
    assert in_words(ConfigError("There is no column `x`.")) == "There is no column `x`", "Assay's own say all in words"


def test_swapped_letters_come_before_likeness() -> None:
    kind = Kind("a loss", {"gspo": "x:y", "grpo": "x:y"}, lambda found: True)
    with pytest.raises(ConfigError, match=r"Did you mean grpo\?"):
        find("gpro", kind, "loss_fn")
