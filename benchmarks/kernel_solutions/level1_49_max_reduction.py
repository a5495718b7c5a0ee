# /// submission
# id = "solution/level1_49"
# problem = "kernelbench 1/49"
# ///
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def max_reduction_kernel(x_ptr, out_ptr, length, inner, BLOCK: tl.constexpr):
    outer = tl.program_id(0)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = cols < inner
    best = tl.full((BLOCK,), float("-inf"), dtype=tl.float32)
    for i in range(length):
        x = tl.load(x_ptr + (outer * length + i) * inner + cols, mask=mask, other=0.0)
        best = tl.maximum(best, x)
    tl.store(out_ptr + outer * inner + cols, best, mask=mask)


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        dim = self.dim % x.dim()
        shape = list(x.shape)
        outer, length, inner = 1, shape[dim], 1
        for size in shape[:dim]:
            outer *= size
        for size in shape[dim + 1 :]:
            inner *= size
        result = shape[:dim] + shape[dim + 1 :]
        out = torch.empty(result, device=x.device, dtype=x.dtype)
        max_reduction_kernel[(outer, triton.cdiv(inner, 256))](x.contiguous(), out, length, inner, BLOCK=256)
        return out
