"""Reading a run in a browser: one self-contained page, or the same page from a loopback server for large runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from assay.viewer.catalogue import Catalogue, read_catalogue
    from assay.viewer.page import write_page
    from assay.viewer.server import ViewerServer
else:
    from assay.exports import lazy_exports

    __getattr__, __dir__ = lazy_exports(__name__)

__all__ = ["Catalogue", "ViewerServer", "read_catalogue", "write_page"]
