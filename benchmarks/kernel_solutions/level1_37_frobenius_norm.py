# /// submission
# id = "solution/level1_37"
# problem = "kernelbench 1/37"
# ///
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def square_sum_kernel(x_ptr, parts_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n, other=0.0)
    tl.store(parts_ptr + tl.program_id(0), tl.sum(x * x, axis=0))


@triton.jit
def divide_kernel(x_ptr, parts_ptr, out_ptr, n, n_parts, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    total = 0.0
    for start in range(0, n_parts, PARTS):
        p = start + tl.arange(0, PARTS)
        total += tl.sum(tl.load(parts_ptr + p, mask=p < n_parts, other=0.0), axis=0)
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n, other=0.0)
    tl.store(out_ptr + offsets, x / tl.sqrt(total), mask=offsets < n)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        n = x.numel()
        n_parts = triton.cdiv(n, 4096)
        parts = torch.empty(n_parts, device=x.device, dtype=torch.float32)
        square_sum_kernel[(n_parts,)](x, parts, n, BLOCK=4096)
        out = torch.empty_like(x)
        divide_kernel[(n_parts,)](x, parts, out, n, n_parts, PARTS=1024, BLOCK=4096)
        return out
