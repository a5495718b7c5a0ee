# /// submission
# id = "solution/level1_38"
# problem = "kernelbench 1/38"
# ///
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def l1_norm_kernel(x_ptr, out_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, cols, BLOCK):
        c = start + tl.arange(0, BLOCK)
        total += tl.abs(tl.load(x_ptr + row * cols + c, mask=c < cols, other=0.0))
    mean = tl.sum(total, axis=0) / cols
    for start in range(0, cols, BLOCK):
        c = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * cols + c, mask=c < cols, other=0.0)
        tl.store(out_ptr + row * cols + c, x / mean, mask=c < cols)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        rows, cols = x.shape
        l1_norm_kernel[(rows,)](x, out, cols, BLOCK=min(4096, triton.next_power_of_2(cols)))
        return out
