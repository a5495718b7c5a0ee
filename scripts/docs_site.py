"""What the documentation's site has beside docs/: README as its first page, the changelog, the examples as files.

A hook of mkdocs (`mkdocs.yml`). Pages are written for whoever reads them in the repository, so links between them start
where the file lies; here they are turned to where the file lies in the site.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = {"README.md": "index.md", "CHANGELOG.md": "CHANGELOG.md", "CONTRIBUTING.md": "CONTRIBUTING.md"}
"""File at the top of the repository -> page of the site."""
LINK = re.compile(r"(?<=\]\()([^)#\s]+)(?=[)#])")
_AS_TEXT = (".py", ".sh", ".jsonl", ".yaml", ".yml", "LICENSE")


def on_files(files: Files, config: Any) -> Files:
    """Add what lies outside docs/."""
    for source, target in PAGES.items():
        files.append(File.generated(config, target, content=(ROOT / source).read_text(encoding="utf-8")))
    for path in [*sorted((ROOT / "examples").rglob("*")), ROOT / "LICENSE"]:
        if path.is_file() and path.name.endswith(_AS_TEXT):
            place = path.relative_to(ROOT).as_posix()
            files.append(File.generated(config, place, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Turn links between files of the repository into links between pages of the site."""
    outside = {target: source for source, target in PAGES.items()}
    home = ROOT / outside.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def turned(match: re.Match[str]) -> str:
        link = match[1]
        if "://" in link or link.startswith("mailto:"):
            return link
        place = (home.parent / link).resolve()
        if not place.is_relative_to(ROOT):
            return link
        place = place.relative_to(ROOT)
        return PAGES.get(place.as_posix(), place.as_posix().removeprefix("docs/"))

    return LINK.sub(turned, markdown)
