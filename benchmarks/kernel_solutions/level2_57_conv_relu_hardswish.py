# /// submission
# id = "solution/level2_57"
# problem = "kernelbench 2/57"
# ///
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def conv_kernel(
    x_ptr, w_ptr, b_ptr, out_ptr, C, H, W, O, OH, OW,
    KH: tl.constexpr, KW: tl.constexpr, BO: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    """A convolution without padding: a block of output channels by a block of pixels a program."""
    image = tl.program_id(2)
    o = tl.program_id(1) * BO + tl.arange(0, BO)
    p = tl.program_id(0) * BP + tl.arange(0, BP)
    inside = p < OH * OW
    y, x = p // OW, p % OW
    total = tl.zeros((BO, BP), dtype=tl.float32) + tl.load(b_ptr + o, mask=o < O, other=0.0)[:, None]
    for c in range(C):
        for tap in range(KH * KW):
            i, j = tap // KW, tap % KW
            value = tl.load(x_ptr + ((image * C + c) * H + y + i) * W + x + j, mask=inside, other=0.0)
            weight = tl.load(w_ptr + (o * C + c) * KH * KW + tap, mask=o < O, other=0.0)
            total += weight[:, None] * value[None, :]
    total = tl.maximum(total, 0.0)
    total = total * tl.minimum((total + 3.0) / 6.0, 1.0)
    tl.store(out_ptr + (image * O + o[:, None]) * OH * OW + p[None, :], total, mask=(o[:, None] < O) & inside[None, :])


class ModelNew(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size)

    def forward(self, x):
        weight = self.conv.weight
        B, C, H, W = x.shape
        O, _, KH, KW = weight.shape
        OH, OW = H - KH + 1, W - KW + 1
        out = torch.empty((B, O, OH, OW), device=x.device, dtype=x.dtype)
        grid = (triton.cdiv(OH * OW, 1024), triton.cdiv(O, 32), B)
        conv_kernel[grid](
            x.contiguous(), weight, self.conv.bias, out, C, H, W, O, OH, OW, KH=KH, KW=KW, BO=32, BP=1024
        )
        return out
