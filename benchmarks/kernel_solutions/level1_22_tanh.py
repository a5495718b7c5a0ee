# /// submission
# id = "solution/level1_22"
# problem = "kernelbench 1/22"
# ///
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def tanh_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0)
    e = tl.exp(-2.0 * tl.abs(x))
    t = (1.0 - e) / (1.0 + e)
    # for small |x| the quotient cancels: the series is exact to float32 there
    t = tl.where(tl.abs(x) < 1e-2, tl.abs(x) * (1.0 - x * x / 3.0), t)
    tl.store(out_ptr + offsets, tl.where(x < 0, -t, t), mask=mask)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        n = x.numel()
        tanh_kernel[(triton.cdiv(n, 1024),)](x, out, n, BLOCK=1024)
        return out
