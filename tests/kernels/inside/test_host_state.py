"""A launch is recorded only of what Triton's decorators made, while Triton and the environment are as they were."""

from __future__ import annotations

import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_interpreter import OUT, X, ok, pointwise

from support.kernel_graders import Bench

CHANGES = {
    "a setting": ("triton.knobs.language.fp32_default = 'ieee'", "triton.knobs.language.fp32_default"),
    "a hook": ("triton.knobs.runtime.jit_cache_hook = lambda **_: True", "jit_cache_hook"),
    "C's environment": ("__import__('os').putenv('TRITON_F32_DEFAULT', 'ieee')", "TRITON_F32_DEFAULT"),
    "the kernel's text": ("kernel._unsafe_update_src('def kernel(): pass')", "another text than its own"),
    "the kernel's compiler": ("kernel._do_compile = lambda *_: None", "another _do_compile"),
    "what is no setting": ("torch.backends.cuda.matmul.allow_tf32 = True; hash(kernel)", ""),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_launch_is_refused_after_host_code_changed_what_it_depends_on(bench: Bench, name: str) -> None:
    change, said = CHANGES[name]
    launch = f"{change}\nkernel[(1,)](x, out, n, BLOCK=128)"
    ran = bench.run(pointwise("tl.store(out + i, tl.load(x + i, mask=m), mask=m)", launch), X, outputs=OUT)
    if said:
        assert said in ran.fault["message"] and ran.fault["kind"] == "unsupported"
    else:
        ok(ran)


FOUND: dict[str, tuple[str, Callable[[Any, pytest.MonkeyPatch], Any]]] = {
    "a setting": ("override_arch", lambda t, patch: patch.setitem(vars(t.knobs.runtime), "override_arch", "x")),
    "a function": ("triton.compiler.compiler", lambda t, patch: patch.setattr(t.compiler.compiler, "compile", len)),
    "a method": ("JITFunction.run", lambda t, patch: patch.setattr(t.runtime.jit.JITFunction, "run", len)),
    "a list": ("prefetch", lambda t, patch: t.knobs.prefetch.append(1)),
    "code": ("the code of", lambda t, patch: patch.setattr(t.cdiv.fn, "__code__", _other.__code__)),
    "a module": ("sys.modules", lambda t, patch: patch.setitem(sys.modules, "triton.knobs", types.ModuleType("x"))),
    "Python's": ("ast.parse", lambda t, patch: patch.setattr(sys.modules["ast"], "parse", len)),
    "a method of Python's": ("Popen.__init__", lambda t, patch: patch.setattr(subprocess.Popen, "__init__", len)),
    "one of what is imported alone": ("Path.read_bytes", lambda t, patch: patch.setattr(Path, "read_bytes", len)),
    "all of the environment": ("os.environ", lambda t, patch: patch.setattr(sys.modules["os"], "environ", {})),
    "the environment": ("TRITON_CACHE_DIR", lambda t, patch: patch.setenv("TRITON_CACHE_DIR", "/nowhere")),
}


def _other(x: int, y: int) -> int:
    return x


@pytest.mark.parametrize("tells", [True, False])
def test_what_a_launch_depends_on_is_held(monkeypatch: pytest.MonkeyPatch, tells: bool) -> None:
    """Also by a Python whose dicts do not tell changes."""
    triton = pytest.importorskip("triton")
    from assay.kernels.inside.record import host_state

    monkeypatch.setattr(host_state, "TELLS_CHANGES", tells and host_state.TELLS_CHANGES)
    monkeypatch.setattr(triton.knobs, "prefetch", [], raising=False)
    state = host_state.HostState()
    monkeypatch.setenv("TORCH_LOGS", "")
    state.check(deep=True)
    for said, change in FOUND.values():
        with monkeypatch.context() as patch:
            change(triton, patch)
            with pytest.raises(host_state.NotRecordableError, match=said):
                state.check(deep=True)
            triton.knobs.prefetch.clear()
        state.check(deep=True)
        state.check(deep=False)
