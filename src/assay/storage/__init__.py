"""Rows of tables; files that survive a kill: atomic writes, truncation, bytes by key in one file for many processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from assay.storage.keyed_store import KeyedStore, default_path
    from assay.storage.sqlite_file import Contents
else:
    from assay.exports import lazy_exports

    __getattr__, __dir__ = lazy_exports(__name__)

__all__ = ["Contents", "KeyedStore", "default_path"]
