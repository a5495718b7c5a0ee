import platform
import subprocess
from importlib.metadata import version

from assay.training.run.provenance import code_changes, describe_code, git_state


def git(folder, *arguments):
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True)


def test_versions_are_those_installed():
    code = describe_code()
    assert code["packages"]["numpy"] == version("numpy")
    assert code["python"] == platform.python_version()


def test_a_checkout_gives_its_commit_and_whether_it_was_edited(tmp_path):
    (tmp_path / "__init__.py").write_text("")
    assert git_state(tmp_path) is None
    git(tmp_path, "init", "-q")
    assert git_state(tmp_path) is None, "a repository that does not track the package is somebody else's"
    git(tmp_path, "add", "__init__.py")
    git(tmp_path, "commit", "-qm", "x")
    clean = git_state(tmp_path)
    assert clean is not None
    assert len(clean["commit"]) == 40
    assert clean["dirty"] is False
    (tmp_path / "__init__.py").write_text("1\n")
    assert git_state(tmp_path) == {"commit": clean["commit"], "dirty": True}


def test_changes_name_what_can_alter_numbers():
    before = {
        "packages": {"torch": "2.12", "peft": None},
        "python": "3.11",
        "machine": "x86_64",
        "platform": "a",
        "git": None,
    }
    now = {
        **before,
        "packages": {"torch": "2.13", "peft": None},
        "platform": "b",
        "git": {"commit": "abc", "dirty": False},
    }
    assert code_changes(before, now) == ["git commit: None -> abc", "torch: 2.12 -> 2.13"]
    assert code_changes(now, now) == []
