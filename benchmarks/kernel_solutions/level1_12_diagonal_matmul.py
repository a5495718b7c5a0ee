# /// submission
# id = "solution/level1_12"
# problem = "kernelbench 1/12"
# ///
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def diagonal_kernel(diagonal_ptr, b_ptr, out_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    b = tl.load(b_ptr + row * cols + c, mask=c < cols)
    tl.store(out_ptr + row * cols + c, b * tl.load(diagonal_ptr + row), mask=c < cols)


class ModelNew(nn.Module):
    def forward(self, A, B):
        rows, cols = B.shape
        out = torch.empty_like(B)
        diagonal_kernel[(rows, triton.cdiv(cols, 1024))](A, B.contiguous(), out, cols, BLOCK=1024)
        return out
