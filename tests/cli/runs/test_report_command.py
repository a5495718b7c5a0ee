import shutil
from pathlib import Path

import pytest

from assay.cli.main import main
from assay.training.config import SFTConfig, load_config
from support.tiny_run import kill, run, tiny

ENVIRONMENT = """
import chz
from support.toy_env import ToyBuilder

@chz.chz
class Mine(ToyBuilder):
    def build(self, context):
        return super().build(context)
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete run of an environment in a file beside it. Copy it."""
    path = tmp_path_factory.mktemp("report")
    (path / "mine.py").write_text(ENVIRONMENT)
    run(tiny(path / "plain", max_batches=1))
    saved = str(path / "plain" / "config.json")
    run(load_config([saved], [f"log_path={path / 'run'}", f"dataset_builder={path / 'mine.py'}:Mine"]))
    return path / "run"


@pytest.fixture
def started(finished: Path, tmp_path: Path) -> Path:
    """A copy of it, with the environment's file as it was."""
    (finished.parent / "mine.py").write_text(ENVIRONMENT)
    return Path(shutil.copytree(finished, tmp_path / "run"))


def test_the_report_of_a_finished_run_is_made_again_the_same(started: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (started / "report.html").read_bytes()
    (started / "report.html").unlink()
    assert main(["report", str(started)]) == 0
    assert (started / "report.html").read_bytes() == page
    assert capsys.readouterr().out.strip() == str(started / "report.html")


@pytest.mark.parametrize("code", [None, "raise ValueError('gone')", ENVIRONMENT.replace("return super()", "self.gone")])
def test_without_its_environment_the_report_has_what_the_run_directory_holds(
    finished: Path, started: Path, caplog: pytest.LogCaptureFixture, code: str | None
) -> None:
    if code is None:
        (finished.parent / "mine.py").unlink()
    else:
        (finished.parent / "mine.py").write_text(code)
    assert main(["report", str(started)]) == 0
    assert "the environment cannot be built" in caplog.text
    page = (started / "report.html").read_text()
    assert "Held-out results" in page and "Sample answers" in page and "<h2>Plan" not in page


def test_a_stopped_run_is_reported_as_far_as_it_came(tmp_path: Path) -> None:
    config = tiny(tmp_path / "run", sft=SFTConfig(num_steps=0), eval_every=1, max_batches=4)
    kill(config, "assay.training.run.directory", "RunDirectory.commit", 4)
    assert not (tmp_path / "run" / "report.html").exists()
    assert main(["report", str(tmp_path / "run")]) == 0
    page = (tmp_path / "run" / "report.html").read_text()
    assert "The run is not finished" in page and "2 RL batches" in page
    run(config)  # a resumed run makes its own
    assert "not finished" not in (tmp_path / "run" / "report.html").read_text()


def test_what_is_no_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path)]) != 0
    assert "is not a run" in capsys.readouterr().err
