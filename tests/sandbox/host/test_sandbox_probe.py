"""A machine that cannot wall code in is found out, and refused in words that name the lack and the cure."""

from __future__ import annotations

import logging
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from assay.errors import ConfigError, SandboxError
from assay.sandbox.host import probe as probing
from assay.sandbox.host.probe import Features, probe, require
from assay.sandbox.inside import linux
from assay.sandbox.inside.syscalls import machine
from assay.sandbox.local import LocalConfig, LocalSandbox
from support.sandboxes import needs_walls


def fake_bubblewrap(folder: Path, text: str) -> str:
    program = folder / "bwrap"
    program.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    program.chmod(0o755)
    return str(folder)


def lacks(features: Features) -> dict[str, str]:
    return {lack.feature: f"{lack.seen} {lack.cure}" for lack in features.missing}


def test_without_bubblewrap_it_says_what_to_install(tmp_path: Path) -> None:
    features = probe(search_path=str(tmp_path))
    assert "apt-get install bubblewrap" in lacks(features)["bubblewrap"]
    with pytest.raises(SandboxError, match="no program bwrap in PATH") as caught:
        require(features)
    assert "sandbox=unsafe" in str(caught.value)


def test_a_machine_without_bubblewrap_gets_no_sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxError, match="no program bwrap in PATH"):
        LocalSandbox()


def test_an_old_bubblewrap_is_refused(tmp_path: Path) -> None:
    features = probe(search_path=fake_bubblewrap(tmp_path, 'echo "bubblewrap 0.3.1"'))
    assert "(0, 3)" in lacks(features)["bubblewrap"]


def test_forbidden_namespaces_are_reported_with_the_cure(tmp_path: Path) -> None:
    text = """
    [ "$1" = --version ] && { echo bubblewrap 0.8.0; exit; }
    echo "bwrap: No permissions to create new namespace" >&2; exit 1"""
    features = probe(search_path=fake_bubblewrap(tmp_path, text))
    assert features.mode is None
    assert "No permissions to create new namespace" in lacks(features)["namespaces"]
    assert "max_user_namespaces" in lacks(features)["namespaces"]


@pytest.mark.skipif(shutil.which("unshare") is None, reason="no unshare program")
def test_a_machine_without_user_namespaces_is_refused() -> None:
    code = "from assay.sandbox.local import *; import asyncio, sys; from assay.sandbox import Job\n"
    code += "async def main():\n    async with LocalSandbox() as s: await s.run(Job('', 'assay.sandbox.plain'))\n"
    code += "try:\n    asyncio.run(main())\nexcept SandboxError as error:\n    print('refused:', error)\n"
    script = f'echo 0 > /proc/sys/user/max_user_namespaces && exec "{sys.executable}" -c "$CODE"'
    environment = {**os.environ, "PYTHONPATH": str(Path(probing.__file__).parents[3]), "CODE": code}
    words = ["unshare", "--user", "--map-root-user", "sh", "-c", script]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
    if "unshare" in done.stderr and done.returncode:
        pytest.skip("this machine has no user namespaces to begin with")
    assert done.stdout.startswith("refused:"), done.stderr
    assert "sandbox=unsafe" in done.stdout


def test_another_system_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "darwin" in lacks(probe())["Linux"]


def test_an_old_kernel_and_a_strange_processor_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "release", lambda: "4.19.0-27-amd64")
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    machine.cache_clear()
    try:
        assert "4.19" in lacks(probe())["a kernel"]
        assert "riscv64" in lacks(probe())["a known processor"]
    finally:
        machine.cache_clear()


def test_memory_files_that_cannot_be_sealed_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(linux, "sealed_file", refuse)
    assert "Invalid argument" in lacks(probe())["sealed memory files"]


@needs_walls
def test_this_machine_is_probed_without_a_complaint() -> None:
    features = probe()
    assert features.missing == ()
    assert require(features) in ("drop", "nobody", "user")


def test_unsafe_is_said_aloud(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), pytest.warns(UserWarning, match="no walls at all"):
        sandbox = LocalSandbox(LocalConfig(sandbox="unsafe"))
    assert "no walls at all" in caplog.text
    os.rmdir(sandbox._scratch)


@pytest.mark.parametrize("fields", [{"sandbox": "off"}, {"workers": -1}])
def test_impossible_settings_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        LocalConfig(**fields)  # type: ignore[arg-type]
