"""What the libraries below print beside Assay's own words."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

from assay.backends.config import LocalBackend
from assay.backends.local.models import add_lora
from support.tiny_models import tiny_model
from support.warm_process import CHECKOUT, run_warm


def test_an_export_draws_no_bars_and_the_hub_says_everything_once() -> None:
    code = (
        "import logging\n"
        "from transformers.utils import logging as said\n"
        "hub = logging.getLogger('huggingface_hub')\n"
        "said.enable_progress_bar(); hub.addHandler(logging.StreamHandler())\n"  # as imported
        "import assay.backends.local.export.weights\n"
        "print(said.is_progress_bar_enabled(), len(hub.handlers), hub.propagate)"
    )
    done = run_warm(["-c", code], Path.cwd(), os.environ | CHECKOUT)
    assert done.stdout.split() == ["False", "0", "True"], done.stderr


def test_adapters_are_made_without_a_word_about_the_libraries_own_names() -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        add_lora(tiny_model("qwen2"), 2, LocalBackend(), 0)
    assert not [warning for warning in said if "deprecated" in str(warning.message)]
