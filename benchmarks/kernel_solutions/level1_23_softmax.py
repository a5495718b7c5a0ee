# /// submission
# id = "solution/level1_23"
# problem = "kernelbench 1/23"
# ///
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, out_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    highest = -float("inf")
    total = 0.0
    for start in range(0, cols, BLOCK):
        c = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * cols + c, mask=c < cols, other=-float("inf"))
        new = tl.maximum(highest, tl.max(x, axis=0))
        total = total * tl.exp(highest - new) + tl.sum(tl.exp(x - new), axis=0)
        highest = new
    for start in range(0, cols, BLOCK):
        c = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * cols + c, mask=c < cols, other=-float("inf"))
        tl.store(out_ptr + row * cols + c, tl.exp(x - highest) / total, mask=c < cols)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        rows, cols = x.shape
        softmax_kernel[(rows,)](x, out, cols, BLOCK=min(4096, triton.next_power_of_2(cols)))
        return out
