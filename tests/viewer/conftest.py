"""A run with everything that a reader meets, and a browser that is started once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from assay.viewer.catalogue import read_catalogue
from assay.viewer.page import PAGE, write_page
from support.browser import Browser, chromium, open_browser
from support.viewer_runs import HOSTILE, RunFiles, Said, all_kinds, judged, write_run


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> RunFiles:
    """A run of six steps with an evaluation and an alarm."""
    files = write_run(tmp_path_factory.mktemp("viewer") / "first", all_kinds, steps=6)
    files.step(5, [files.group("What is 40 plus 2?", [[Said("42", judged(1.0))]], "sums")], "eval")
    files.alarm(3, f"Entropy fell. {HOSTILE[0]}")
    return files


@pytest.fixture(scope="session")
def other(files: RunFiles) -> RunFiles:
    """Another run on the same tasks, in another order and without the last one; it had 2 SFT steps."""
    path = files.path.parent / "second"
    return write_run(path, lambda to, step: all_kinds(to, step, 0.15)[2::-1], steps=5, before=2)


@pytest.fixture(scope="session")
def page(files: RunFiles) -> str:
    """Address of the first run's page."""
    output = files.path.parent / PAGE
    write_page([read_catalogue(files.path)], output)
    return output.as_uri()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium without a window."""
    path = chromium()
    if path is None:
        pytest.skip("no Chromium that starts here to open the page in (CHROMIUM_PATH, or apt-get install chromium)")
    with open_browser(path) as found:
        yield found
