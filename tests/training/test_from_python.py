"""Runs that are started from Python: what is shown, and how a config is written."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

from assay.config import SettingsError
from assay.training.config import TrainingConfig, load_config
from support.tiny_run import tiny
from support.warm_process import CHECKOUT, run_warm

SCRIPT = """
import logging, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
import assay
from support.tiny_run import tiny
for name, quiet in (("one", False), ("two", False), ("three", True)):
    assay.train(tiny(Path(sys.argv[1]) / name, max_batches=1, eval_every=0), **({"quiet": True} if quiet else {}))
    print(name, file=sys.stderr)
assert logging.getLogger("assay").handlers == []
"""


def test_a_run_says_what_it_does_unless_it_is_told_not_to(tmp_path: Path) -> None:
    done = run_warm(["-c", SCRIPT, str(tmp_path)], tmp_path, CHECKOUT)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    loud, again, quiet = re.split("^one\n|^two\n", done.stderr, flags=re.MULTILINE)
    for text in (loud, again):
        assert text.count("Model: a gpt2 transformer from scratch") == 1 and "Done: " in text
    assert quiet == "three\n"


def test_logging_that_is_configured_decides(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from assay.training.loop import train

    before = logging.getLogger("assay").level
    train(tiny(tmp_path / "run", max_batches=0))  # pytest has handlers of its own
    assert capfd.readouterr().err == "" and logging.getLogger("assay").level == before


def test_one_override_may_be_a_text() -> None:
    assert load_config("chess", "seed=3").seed == 3
    assert load_config(None, "dataset_builder=chess").seed == 0


def test_a_path_that_is_text_is_refused_with_what_to_write() -> None:
    with pytest.raises(
        SettingsError, match=r"log_path='runs/x': expected a path\. In Python, write Path\('runs/x'\)\."
    ):
        TrainingConfig(log_path="runs/x")  # type: ignore[arg-type]
