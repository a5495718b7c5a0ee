# /// submission
# id = "solution/level2_14"
# problem = "kernelbench 2/14"
# note = "The sum over outputs is taken of the weights first."
# ///
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def sum_rows_kernel(w_ptr, out_ptr, H, K, BLOCK: tl.constexpr):
    """Sum of the weights over the hidden dimension: the sum of all products is the product with that sum."""
    k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for h in range(H):
        total += tl.load(w_ptr + h * K + k, mask=k < K, other=0.0)
    tl.store(out_ptr + k, total, mask=k < K)


@triton.jit
def dot_kernel(x_ptr, w_ptr, out_ptr, K, scale, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, K, BLOCK):
        k = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * K + k, mask=k < K, other=0.0)
        total += x * tl.load(w_ptr + k, mask=k < K, other=0.0)
    tl.store(out_ptr + row, tl.sum(total, axis=0) * scale)


class ModelNew(nn.Module):
    def __init__(self, input_size, hidden_size, scaling_factor):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(hidden_size, input_size))
        self.scaling_factor = scaling_factor

    def forward(self, x):
        x = x.contiguous()
        rows, K = x.shape
        summed = torch.empty(K, device=x.device, dtype=torch.float32)
        sum_rows_kernel[(triton.cdiv(K, 1024),)](self.weight, summed, self.weight.shape[0], K, BLOCK=1024)
        out = torch.empty((rows, 1), device=x.device, dtype=x.dtype)
        dot_kernel[(rows,)](x, summed, out, K, self.scaling_factor / 2, BLOCK=min(4096, triton.next_power_of_2(K)))
        return out
