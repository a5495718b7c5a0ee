"""Pages lead where they say: every relative link, with its heading, in README and docs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from assay.config import Layer
from assay.config.loader import Draft
from assay.config.schema import settings
from assay.training.config import TrainingConfig

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/*.md"))]
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`]+)`")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def headings(page: Path) -> set[str]:
    """The anchors that GitHub and mkdocs give the headings of a page."""
    found = re.findall(r"^#+ +(.+)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", re.sub(r"[`*]", "", title)).strip().lower().replace(" ", "-") for title in found}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_and_headings_that_are_there(page: Path) -> None:
    for link in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        if "://" in link:
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), f"{page.name} links to {link}, which is not there"
        if anchor:
            assert anchor in headings(target), f"{page.name} links to {link}, and {target.name} has no such heading"


def test_every_page_is_in_the_sites_menu_once() -> None:

    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    listed = [page for entry in nav for value in entry.values() for page in pages_of(value)]
    outside = {"index.md", "CHANGELOG.md", "CONTRIBUTING.md"}
    assert sorted(listed) == sorted({path.name for path in ROOT.glob("docs/*.md")} | outside)


def pages_of(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    assert isinstance(value, list)
    return [page for entry in value for page in entry.values()]


def test_the_settings_that_users_of_other_trainers_are_told_of_are_there() -> None:
    """The second columns of the tables in migrating.md: `key`, `key=value` or several of them."""
    text = (ROOT / "docs/migrating.md").read_text(encoding="utf-8")
    cells = [line.split("|")[2] for line in text.splitlines() if line.startswith("| `")]
    keys = {word.partition("=")[0] for cell in cells for span in CODE.findall(cell) for word in span.split()}
    draft = Draft(TrainingConfig, [Layer("test", {"dataset_builder": "rows"})])
    known = {*draft.keys(), "loss_fn_config.clip_low_threshold", "loss_fn_config.clip_high_threshold"}
    written = {key for key in keys if "." in key or key in settings(TrainingConfig)}
    assert len(written) > 20
    assert not written - known


def test_nothing_is_said_to_come_from_a_package_index() -> None:
    """The distribution is on none: `assay.errors.pip_install` says what works."""
    texts = {path: path.read_text(encoding="utf-8") for path in (*PAGES, *ROOT.glob("src/**/*.py"))}
    assert [str(path) for path, text in texts.items() if "assay-rl[" in text] == []
