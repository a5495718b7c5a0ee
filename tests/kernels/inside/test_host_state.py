"""A launch is recorded only of what Triton's decorators made, while Triton and the environment are as they were."""

from __future__ import annotations

import pytest
from test_interpreter import OUT, X, ok, pointwise

from support.kernel_graders import Bench

CHANGES = {
    "a setting": ("triton.knobs.language.fp32_default = 'ieee'", "triton.knobs.language.fp32_default"),
    "a hook": ("triton.knobs.runtime.jit_cache_hook = lambda **_: True", "jit_cache_hook"),
    "C's environment": ("__import__('os').putenv('TRITON_F32_DEFAULT', 'ieee')", "TRITON_F32_DEFAULT"),
    "the kernel's text": ("kernel._unsafe_update_src('def kernel(): pass')", "another _src"),
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
