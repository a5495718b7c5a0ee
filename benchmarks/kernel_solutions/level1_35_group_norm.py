# /// submission
# id = "solution/level1_35"
# problem = "kernelbench 1/35"
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
    def __init__(self, num_features, num_groups):
        super().__init__()
        self.gn = nn.GroupNorm(num_groups=num_groups, num_channels=num_features)

    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        batch, channels = x.shape[:2]
        groups = self.gn.num_groups
        size = x.numel() // (batch * channels)
        group_size = channels // groups * size
        block = min(4096, triton.next_power_of_2(group_size))
        group_stats_norm_kernel[(batch * groups,)](
            x, self.gn.weight, self.gn.bias, out, group_size, size, groups, self.gn.eps, AFFINE=True, BLOCK=block
        )
        return out
