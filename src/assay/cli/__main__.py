"""`python -m assay.cli` is `assay`."""

from __future__ import annotations

import sys

from assay.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
