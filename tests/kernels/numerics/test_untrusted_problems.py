"""A problem is somebody else's code: what it cannot reach, and what its author is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.errors import ReferenceModelError, SandboxError
from assay.kernels.frames import Frame, read_frame
from assay.kernels.numerics import reference_launch
from assay.kernels.numerics.reference import ReferenceProcess
from assay.kernels.problems.sources import read_jsonl
from assay.sandbox.host.probe import Features, Missing
from support.kernelbench_data import TINY
from support.sandboxes import needs_walls

pytestmark = needs_walls
SEEDS: Any = {"input_seed": 1, "weight_seed": 0, "families": ("given",)}


def saying(expression: str, before: str = "") -> str:
    """A problem whose error says what an expression of its forward is."""
    return TINY.replace(
        "        return torch", f"        {before}\n        raise ValueError({expression})\n        return torch"
    )


def said(process: ReferenceProcess, code: str) -> str:
    with pytest.raises(ReferenceModelError) as caught:
        process.evaluate(code, **SEEDS)
    return str(caught.value)


def test_a_problem_sees_nothing_of_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also from a file of JSON lines, and wherever in the module it looks."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-proj-secret")
    looks = "' '.join([*map(str, __import__('os').environ.items()), open('/proc/self/environ').read() if 0 else ''])"
    path = tmp_path / "problems.jsonl"
    row = {"code": saying(looks), "level": 1, "name": "x", "problem_id": 1}
    path.write_text(json.dumps(row))
    (problem,) = read_jsonl(path)
    with ReferenceProcess() as process:
        found = said(process, problem.code)
        assert "PATH" in found, "it did look"
        assert "sk-proj-secret" not in found and "OPENAI_API_KEY" not in found
        for place in ("/proc/1/environ", "/proc/self/environ"):
            assert "FileNotFoundError" in said(process, saying(f"open('{place}').read()"))
        module = f"import os\nraise ValueError(str(os.environ))\n{TINY}"
        assert "sk-proj-secret" not in said(process, module)


REACHES = {
    "files of the user": ("open('{secret}').read()", "FileNotFoundError"),
    "accounts": ("open('/etc/passwd').read()", "FileNotFoundError"),
    "other processes": ("__import__('os').listdir('/proc')", "ValueError: []"),
    "folders that it could write": ("open('/usr/planted', 'w')", "Read-only file system"),
    "packages that it could write": ("open(torch.__file__, 'a')", "Error: [Errno "),
    "the network": ("__import__('socket').socket()", "PermissionError"),
    "new processes": ("__import__('os').fork()", "PermissionError"),
    "programs": ("__import__('subprocess').run(['/bin/ls'])", "PermissionError"),
    "the process that runs it": (
        "__import__('os').kill(__import__('os').getppid(), 0) or __import__('os').getppid()",
        "0",
    ),
    "variables": ("__import__('os').environ['HF_TOKEN']", "KeyError"),
    "own modules": ("__import__('my_helpers')", "ModuleNotFoundError"),
}


@pytest.mark.parametrize("reach", REACHES)
def test_what_a_problem_reaches_for_is_not_there(
    reach: str, reference_process: ReferenceProcess, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("the user's")
    expression, answer = REACHES[reach]
    found = said(reference_process, saying(expression.replace("{secret}", str(secret))))
    assert answer in found and "the user's" not in found
    if answer not in ("ValueError: []", "0"):
        assert "runs sealed off" in found, "its author learns why"


def test_an_ordinary_error_is_said_as_it_is(reference_process: ReferenceProcess) -> None:
    found = said(reference_process, saying("'no such luck'"))
    assert found == "the reference failed: ValueError: no such luck"


def test_a_problem_may_write_to_its_own_scratch_folder(reference_process: ReferenceProcess) -> None:
    code = saying("open('x').read()", "open('x', 'w').write('mine')")
    assert "ValueError: mine" in said(reference_process, code)
    assert "FileNotFoundError" in said(reference_process, saying("open('x').read()")), "and the next one finds it empty"


def test_no_problem_meets_what_another_left(reference_process: ReferenceProcess) -> None:
    before = reference_process.evaluate(TINY, **SEEDS).cases[0].exact[0]
    spoiling = saying("'spoilt'", "torch.relu = torch.abs; torch.Tensor.to = None")
    assert "spoilt" in said(reference_process, spoiling)
    np.testing.assert_array_equal(reference_process.evaluate(TINY, **SEEDS).cases[0].exact[0], before)


FORGED: dict[str, Any] = {
    "nothing": {},
    "no list": {"cases": 1},
    "deep": {"cases": [], "outputs": [[[[]]]]},
    "a case without a name": {"cases": [{}]},
    "a tensor of no type": {"cases": [{"family": "given", "rounded": [{"dtype": "x", "shape": [1], "blob": 0}]}]},
    "a shape without bound": {
        "cases": [{"family": "given", "rounded": [{"dtype": "bool", "shape": [10**400], "blob": 0}]}]
    },
    "a shape of text": {"cases": [{"family": "given", "rounded": [{"dtype": "bool", "shape": "xx", "blob": 0}]}]},
    "an error of no kind": {"error": ["x"], "message": 3},
    "an error with escapes": {"error": "error", "message": "\x1b]0;owned\x07" * 10_000},
}


@pytest.mark.parametrize("forged", FORGED)
def test_a_forged_answer_is_an_error_and_no_traceback(forged: str, reference_process: ReferenceProcess) -> None:
    """Written by the problem itself into the file that its answer goes to."""
    header = json.dumps({**FORGED[forged], "_blobs": []})
    lines = (
        "import os",
        f"h = {header!r}.encode()",
        "os.write(5, len(h).to_bytes(8, 'little') + h)",
        "os._exit(90)",
    )
    found = said(reference_process, saying("1", "; ".join(lines)))
    assert "\x1b" not in found and len(found) < 4000


def forging(header: dict[str, Any]) -> str:
    """A problem that writes an answer itself."""
    text = json.dumps(header)
    write = f"h = {text!r}.encode(); os.write(5, len(h).to_bytes(8, 'little') + h); os._exit(90)"
    return saying("1", f"import os; {write}")


WHOLE: dict[str, Any] = {
    **{"_blobs": [], "cases": [], "parameters": 0, "weights": [], "constant": [], "exact": "float64"},
    **{"init_inputs": 1, "refused": {}, "peak_mb": 1.0, "init_work": 0, "draws": [], "work": {"mm": [1, 7]}},
    "initial": [],
    "fixed": [],
}


@pytest.mark.parametrize("number", [10**400, -1, 1.5, "7", True, None])
def test_counts_of_work_are_bounded(number: Any, reference_process: ReferenceProcess) -> None:
    assert reference_process.evaluate(forging(WHOLE), **SEEDS).work == {"mm": (1, 7)}
    for forged in ({"init_work": number}, {"work": {"mm": [1, number]}}, {"work": {"mm": [number, 1]}}):
        assert "makes no sense" in said(reference_process, forging(WHOLE | forged)), forged


@pytest.mark.parametrize("draws", [None, [["normal"]], [["normal", ["a"]]], [["normal", [10**400]]], [1], 7])
def test_draws_of_another_form_make_no_sense(draws: Any, reference_process: ReferenceProcess) -> None:
    assert "makes no sense" in said(reference_process, forging(WHOLE | {"draws": draws}))


@pytest.mark.parametrize("sizes", ["[-1]", "[1e9]", "{}", "[true]", f"[{10**30}]", "[[]]", "null"])
def test_a_frame_of_impossible_sizes_is_none(sizes: str) -> None:
    header = f'{{"_blobs": {sizes}}}'.encode()
    with pytest.raises(ValueError, match="frame"):
        read_frame(len(header).to_bytes(8, "little") + header)
    for header in (b"[" * 100_000, b"[]", b"1", b"{}"):
        with pytest.raises(ValueError, match="frame"):
            read_frame(len(header).to_bytes(8, "little") + header)
    assert Frame({}).value([1]) == (1,)


def test_an_answer_is_no_longer_than_its_memory(reference_process: ReferenceProcess) -> None:
    fill = saying("1", "import os; os.posix_fallocate(5, 0, 1 << 40)")
    assert "File too large" in said(reference_process, fill) or "died of SIGXFSZ" in said(reference_process, fill)
    stretch = saying("1", "import os; os.ftruncate(5, 1 << 40); os._exit(90)")
    assert "File too large" in said(reference_process, stretch) or "died of SIGXFSZ" in said(reference_process, stretch)


def test_without_walls_nothing_runs_unless_the_user_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-proj-secret")
    nothing = Features("", None, (Missing("bubblewrap", "no program bwrap in PATH", "install it"),))
    monkeypatch.setattr(reference_launch, "probe", lambda: nothing)
    with ReferenceProcess() as process, pytest.raises(SandboxError, match="bwrap"):
        process.evaluate(TINY, **SEEDS)
    with ReferenceProcess(walls="unsafe") as process:
        assert process.evaluate(TINY, **SEEDS).cases
        found = said(process, saying("str(__import__('os').environ)"))
        assert "sk-proj-secret" not in found and "PATH" in found, "the environment is empty even so"
