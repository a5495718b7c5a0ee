# /// submission
# id = "solution/level1_40"
# problem = "kernelbench 1/40"
# ///
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def group_stats_norm_kernel(x_ptr, w_ptr, b_ptr, out_ptr, group_size, size, groups, eps, AFFINE: tl.constexpr, BLOCK: tl.constexpr):
    """One group a program: `group_size` elements in a row, channels of `size` elements each."""
    program = tl.program_id(0)
    base = program * group_size
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, group_size, BLOCK):
        i = start + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + base + i, mask=i < group_size, other=0.0)
    mean = tl.sum(total, axis=0) / group_size
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, group_size, BLOCK):
        i = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + base + i, mask=i < group_size, other=0.0)
        centred = tl.where(i < group_size, x - mean, 0.0)
        total += centred * centred
    rstd = tl.rsqrt(tl.sum(total, axis=0) / group_size + eps)
    for start in range(0, group_size, BLOCK):
        i = start + tl.arange(0, BLOCK)
        y = (tl.load(x_ptr + base + i, mask=i < group_size, other=0.0) - mean) * rstd
        if AFFINE:
            channel = (program % groups) * (group_size // size) + i // size
            y = y * tl.load(w_ptr + channel, mask=i < group_size) + tl.load(b_ptr + channel, mask=i < group_size)
        tl.store(out_ptr + base + i, y, mask=i < group_size)


class ModelNew(nn.Module):
    def __init__(self, normalized_shape):
        super().__init__()
        self.ln = nn.LayerNorm(normalized_shape=normalized_shape)

    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        group_size = self.ln.weight.numel()
        # Every element has a weight of its own: channels of one element, one group.
        group_stats_norm_kernel[(x.numel() // group_size,)](
            x, self.ln.weight, self.ln.bias, out, group_size, 1, 1, self.ln.eps, AFFINE=True, BLOCK=4096
        )
        return out
