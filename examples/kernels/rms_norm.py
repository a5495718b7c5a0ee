"""A Triton kernel for problem 1/3 of those that Assay ships: root-mean-square normalisation with a learned gain.

    assay grade --show 1/3
    assay grade --problem 1/3 --kernel examples/kernels/rms_norm.py

One program normalises one row: it loads the row once, sums the squares of its elements, and stores the scaled row.
"""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def rms_norm_kernel(x_ptr, gain_ptr, out_ptr, features, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    # BLOCK is a power of two, a row need not be one: the mask keeps loads and stores inside the row.
    mask = columns < features
    x = tl.load(x_ptr + row * features + columns, mask=mask, other=0.0)
    gain = tl.load(gain_ptr + columns, mask=mask, other=0.0)
    # Elements beyond the row are 0 and add nothing; the mean is over the row's own elements.
    mean_square = tl.sum(x * x, axis=0) / features
    tl.store(out_ptr + row * features + columns, x * tl.rsqrt(mean_square + eps) * gain, mask=mask)


class ModelNew(nn.Module):
    """The problem's Model, with its constructor as it is: the same seed then gives the gain the same values."""

    def __init__(self, features, eps):
        super().__init__()
        self.eps = eps
        self.gain = nn.Parameter(torch.rand(features) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        rows, features = x.shape
        out = torch.empty_like(x)
        block = triton.next_power_of_2(features)
        rms_norm_kernel[(rows,)](x, self.gain, out, features, self.eps, BLOCK=block)
        return out
