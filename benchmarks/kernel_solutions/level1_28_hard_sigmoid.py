# /// submission
# id = "solution/level1_28"
# problem = "kernelbench 1/28"
# ///
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def hard_sigmoid_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0)
    tl.store(out_ptr + offsets, tl.minimum(tl.maximum(x + 3.0, 0.0), 6.0) / 6.0, mask=mask)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        n = x.numel()
        hard_sigmoid_kernel[(triton.cdiv(n, 1024),)](x, out, n, BLOCK=1024)
        return out
