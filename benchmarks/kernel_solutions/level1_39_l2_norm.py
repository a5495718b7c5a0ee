# /// submission
# id = "solution/level1_39"
# problem = "kernelbench 1/39"
# ///
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def l2_norm_kernel(x_ptr, out_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, cols, BLOCK):
        c = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * cols + c, mask=c < cols, other=0.0)
        total += x * x
    norm = tl.sqrt(tl.sum(total, axis=0))
    for start in range(0, cols, BLOCK):
        c = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * cols + c, mask=c < cols, other=0.0)
        tl.store(out_ptr + row * cols + c, x / norm, mask=c < cols)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        rows, cols = x.shape
        l2_norm_kernel[(rows,)](x, out, cols, BLOCK=min(4096, triton.next_power_of_2(cols)))
        return out
