from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from assay.cli import main as cli
from assay.presets import presets
from support.recorded_run import group, record
from support.warm_process import CHECKOUT, run_warm

CHECKED = ["train", "--config", "chess", "--dry-run"]


def assay(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the real program."""
    command = [sys.executable, "-m", "assay", *arguments]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "100", **environment}
    return subprocess.run(command, capture_output=True, text=True, env=env, check=False)


Refused = Callable[..., str]


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Refused:
    """What a command prints that is refused, in an empty directory."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> str:
        assert cli.main(list(arguments)) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.startswith("error: ") and "Traceback" not in err
        return err

    return run


def test_help_teaches_without_loading_anything_heavy() -> None:
    code = (
        "import sys\nfrom assay.cli.main import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
        "print('loaded', *{m.partition('.')[0] for m in sys.modules} & {'torch', 'numpy', 'chess', 'chz', 'rich'})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    text, _, loaded = done.stdout.rpartition("loaded")
    assert loaded.strip() == ""
    examples = re.findall(r"^  assay .*  +\w", text, re.MULTILINE)
    assert len(examples) >= 3
    for name, description in presets().items():
        assert name in text
        assert description.split()[0] in text


def test_no_command_prints_the_same_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 0
    assert "assay train --config chess" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["train", "eval", "score"])
def test_help_fits_on_a_screen_or_two_and_points_to_all_settings(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main([command, "--help"])
    assert left.value.code == 0
    out = capsys.readouterr().out
    assert "settings changed most" in out and "`assay settings" in out
    assert len(out.splitlines()) < 90
    if command == "train":
        assert "  learning_rate=0.0001\n      Adam learning rate of RL." in out


def test_config_prints_the_resolved_config() -> None:
    done = assay("config", "--config", "chess", "seed=7", "--local.torch_threads=3")
    assert done.returncode == 0
    assert done.stderr == ""
    data = json.loads(done.stdout)
    assert (data["seed"], data["local"]["torch_threads"], data["model_name"]) == (7, 3, "scratch")
    assert data["wandb_project"] is None


def test_settings_and_options_mix_in_any_order(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["config", "seed=1", "--config=chess", "save_every=3", "--seed=2"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["seed"], data["save_every"], data["model_name"]) == (2, 3, "scratch")


def test_dry_run_prints_the_plan_and_writes_nothing(tmp_path: Path) -> None:
    command = ["-m", "assay", *CHECKED, "dataset_builder.num_train=64", f"cache_dir={tmp_path / 'cache'}"]
    done = run_warm(command, tmp_path, os.environ | CHECKOUT)
    assert done.returncode == 0, done.stderr
    assert "RL: 4 batches of 16 problems x 16 rollouts = 256 samples" in done.stdout
    assert not (tmp_path / "runs").exists()


def test_unknown_key_is_refused_with_the_nearest_spelling(refused: Refused) -> None:
    said = refused(*CHECKED, "lerning_rate=1e-3")
    assert "lerning_rate (command line)" in said and "Did you mean learning_rate?" in said


def test_wrong_type_is_refused(refused: Refused) -> None:
    Path("mine.yaml").write_text("save_every: often\n")
    said = refused("train", "--config", "chess", "--config", "mine.yaml")
    assert "save_every=often (mine.yaml): expected a whole number" in said


def test_missing_file_is_refused(refused: Refused) -> None:
    said = refused("train", "--config", "nowhere/run.yaml")
    assert "nowhere/run.yaml" in said and "Presets: chess" in said


def test_malformed_file_is_refused(refused: Refused) -> None:
    Path("mine.yaml").write_text("seed: 1\nlocal: {device: cpu\n")
    assert "mine.yaml, line 3" in refused("config", "--config", "mine.yaml")


@pytest.mark.parametrize("argument", ["--lr", "learning_rate", "-x"])
def test_an_unknown_option_shows_how_settings_are_written(argument: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", argument, "3"]) == 2
    error = capsys.readouterr().err
    assert repr(argument) in error
    assert "key=value" in error and "`assay settings`" in error


def test_an_unknown_option_names_the_list_of_the_settings_of_its_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["grade", "--lr"]) == 2
    assert "`assay grade --settings`" in capsys.readouterr().err


@pytest.mark.parametrize(("found", "said"), [("/usr/bin/assay", "assay config"), (None, ".venv/bin/assay config")])
def test_an_interruption_names_a_command_that_the_shell_finds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], found: str | None, said: str
) -> None:
    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("assay.cli.config.run", interrupted)
    monkeypatch.setattr("shutil.which", lambda name: found)
    monkeypatch.setattr("sys.argv", [".venv/bin/assay", "config"])
    assert cli.main() == 130
    assert capsys.readouterr().err.endswith(f"given: {said}\n")


def test_a_missing_optional_package_names_its_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def needs_chess(*_: object) -> int:
        raise ModuleNotFoundError("No module named 'chess'", name="chess.engine")

    monkeypatch.setattr("assay.cli.config.run", needs_chess)
    assert cli.main(["config"]) == 1
    assert "pip install '.[chess]'" in capsys.readouterr().err


def test_a_missing_module_of_ours_is_a_bug_and_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> int:
        raise ModuleNotFoundError("No module named 'assay.nowhere'", name="assay.nowhere")

    monkeypatch.setattr("assay.cli.config.run", broken)
    with pytest.raises(ModuleNotFoundError):
        cli.main(["config"])


def test_an_interrupt_says_how_to_resume(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("assay.cli.runs.train.run", interrupted)
    monkeypatch.setenv("PATH", str(tmp_path))  # the shell does not find `assay`
    for started, program in (
        ("/opt/env/bin/assay", "/opt/env/bin/assay"),
        ("/opt/env/assay/__main__.py", f"{sys.executable} -m assay"),
        ("-c", "assay"),
    ):
        monkeypatch.setattr("sys.argv", [started])
        assert cli.main(["train", "--config", "chess", "wandb_name=a b"]) == 130
        assert f"given: {program} train --config chess 'wandb_name=a b'\n" in capsys.readouterr().err


def test_a_reader_that_has_left_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "assay", "config"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert done.stderr == ""
    assert done.returncode == 141


WITHOUT_CHESS = """
import sys
sys.modules["chess"] = None  # as where python-chess is not installed
from assay.cli.main import main
try:
    status = main(sys.argv[1:])
except SystemExit as left:
    status = left.code
print("status", status)
"""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["settings", "dataset_builder"],
            "dataset_builder=chess: its settings cannot be listed, since chess is not installed.",
        ),
        (["train", "--config", "monitor", "--dry-run", "dataset_builder.num_train=8"], "Monitor tasks"),
        (["config", "--config", "monitor"], '"type": "monitor"'),
    ],
)
def test_what_needs_no_chess_runs_without_it(tmp_path: Path, arguments: list[str], words: str) -> None:
    place = [f"cache_dir={tmp_path}", f"log_path={tmp_path / 'run'}"] if arguments[0] != "settings" else []
    done = run_warm(["-c", WITHOUT_CHESS, *arguments, *place], tmp_path, os.environ | CHECKOUT)
    assert words in done.stdout and "status 0" in done.stdout, done.stdout[-2000:] + done.stderr


def test_what_needs_chess_says_how_to_get_it() -> None:
    command = [sys.executable, "-c", WITHOUT_CHESS, "config", "--config", "chess"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert "status 1" in done.stdout
    assert (
        done.stderr.strip()
        == "error: chess is not installed, and this command needs it: pip install '.[chess]' in a checkout of Assay."
    )


def test_a_command_that_is_not_there_is_one_line_with_those_that_are() -> None:
    done = assay("trian", "--config", "chess")
    assert done.returncode == 2
    assert (
        done.stderr
        == f"error: 'trian' is not a command. Did you mean train? The commands are {', '.join(cli.COMMANDS)}.\n"
    )


@pytest.mark.parametrize("package", ["assay", "assay.cli"])
def test_either_package_runs_as_a_module(package: str) -> None:
    done = subprocess.run([sys.executable, "-m", package, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("assay ")


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_has_help_of_its_own(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main([name, "--help"])
    assert left.value.code == 0
    summary = cli.COMMANDS[name].summary
    assert f"{summary[0].upper()}{summary[1:]}." in capsys.readouterr().out.replace("\n", " ")


def test_a_terminal_that_cannot_show_a_character_gets_its_number(tmp_path: Path) -> None:
    run = record(tmp_path, (0, "train", [group("a", 0.0, 1.0, text="caf\u00e9 \u265a")]))
    done = assay("show", str(run), PYTHONIOENCODING="ascii")
    assert done.returncode == 0 and "caf\\xe9 \\u265a" in done.stdout, done.stderr
