"""A kernel on its way from Triton's last text (TTGIR) to LLVM, step by step.

stage = LlvmStage(module.context, text, 90, 86)
stage.without_structure()      branches for loops and choices; what is made of operations is decided on this
stage.first_text()             what is made of them in LLVM's dialect
stage.simplified()             and what is left of that
"""

from __future__ import annotations

import tempfile
from typing import Any

from triton._C.libtriton import ir, nvidia, passes


class LlvmStage:
    """Takes the steps in their order, of a copy of the kernel.

    Args:
        context: Of the kernel.
        text: TTGIR.
        capability: Of the GPU that it is compiled for.
        ptx_version: The same of its machine language.
    """

    def __init__(self, context: Any, text: str, capability: int, ptx_version: int) -> None:
        with tempfile.NamedTemporaryFile("w", suffix=".ttgir", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            self._module = ir.parse_mlir_module(file.name, context)
        self._context, self._gpu = context, (capability, ptx_version)

    def without_structure(self) -> str:
        """The text without loops and choices."""
        manager = ir.pass_manager(self._context)
        # What `make_llir` begins with.
        passes.ttgpuir.add_combine_tensor_select_and_if(manager)
        passes.ttgpuir.add_allocate_warp_groups(manager)
        passes.convert.add_scf_to_cf(manager)
        passes.gluon.add_inliner(manager)
        nvidia.passes.ttgpuir.add_allocate_shared_memory_nv(manager, *self._gpu)
        nvidia.passes.ttnvgpuir.add_allocate_tensor_memory(manager)
        nvidia.passes.ttnvgpuir.add_check_matmul_two_cta(manager)
        passes.ttgpuir.add_allocate_global_scratch_memory(manager)
        nvidia.passes.ttnvgpuir.add_proxy_fence_insertion(manager, self._gpu[0])
        return self._run(manager)

    def shared_bytes(self) -> int:
        """Shared memory that a block needs, once there are no loops and choices."""
        return int(self._module.get_int_attr("ttg.shared") or 0)

    def first_text(self) -> str:
        """What the compiler makes of it in LLVM's dialect, before it simplifies that."""
        manager = ir.pass_manager(self._context)
        nvidia.passes.ttgpuir.add_to_llvmir(manager, *self._gpu)
        return self._run(manager)

    def simplified(self) -> str:
        """The same once it is simplified. Of what stands then LLVM drops nothing that comes to memory."""
        manager = ir.pass_manager(self._context)
        passes.common.add_canonicalizer(manager)
        passes.common.add_cse(manager)
        return self._run(manager)

    def _run(self, manager: Any) -> str:
        manager.run(self._module, "llvm_stage")
        return str(self._module)
