# /// submission
# id = "solution/level2_22"
# problem = "kernelbench 2/22"
# ///
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def mish(x):
    """x tanh(softplus(x)) without overflow: tanh(log(1 + e)) is (e^2 + 2e) / (e^2 + 2e + 2)."""
    e = tl.exp(tl.minimum(x, 20.0))
    n = e * (e + 2.0)
    return tl.where(x > 20.0, x, x * n / (n + 2.0))


@triton.jit
def linear_kernel(x_ptr, w_ptr, b_ptr, out_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, K, BK):
        ks = start + tl.arange(0, BK)
        x = tl.load(x_ptr + rows[:, None] * K + ks[None, :], mask=(rows[:, None] < M) & (ks[None, :] < K), other=0.0)
        w = tl.load(w_ptr + cols[None, :] * K + ks[:, None], mask=(cols[None, :] < N) & (ks[:, None] < K), other=0.0)
        total += tl.dot(x, w, input_precision="ieee")
    total += tl.load(b_ptr + cols, mask=cols < N, other=0.0)[None, :]
    tl.store(out_ptr + rows[:, None] * N + cols[None, :], total, mask=(rows[:, None] < M) & (cols[None, :] < N))


def linear(layer, x):
    """The layer's product with the kernel above; only its weights are used."""
    x = x.contiguous()
    M, K = x.shape
    N = layer.weight.shape[0]
    out = torch.empty((M, N), device=x.device, dtype=x.dtype)
    grid = (triton.cdiv(M, 32), triton.cdiv(N, 32))
    linear_kernel[grid](x, layer.weight, layer.bias, out, M, N, K, BM=32, BN=32, BK=32)
    return out


@triton.jit
def row_kernel(x_ptr, out_ptr, cols, scale, low, high, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    highest = -float("inf")
    total = 0.0
    for start in range(0, cols, BLOCK):
        c = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * cols + c, mask=c < cols, other=0.0)
        x = tl.minimum(tl.maximum(x * scale * 2.0, low), high)
        x = tl.where(c < cols, x, -float("inf"))
        new = tl.maximum(highest, tl.max(x, axis=0))
        total = total * tl.exp(highest - new) + tl.sum(tl.exp(x - new), axis=0)
        highest = new
    y = highest + tl.log(total)
    y = y * mish(y)
    tl.store(out_ptr + row, y)


class ModelNew(nn.Module):
    def __init__(self, input_size, hidden_size, scale_factor, clamp_min, clamp_max):
        super().__init__()
        self.matmul = nn.Linear(input_size, hidden_size)
        self.scale_factor, self.low, self.high = scale_factor, clamp_min, clamp_max

    def forward(self, x):
        x = linear(self.matmul, x)
        rows, cols = x.shape
        out = torch.empty((rows, 1), device=x.device, dtype=x.dtype)
        row_kernel[(rows,)](x, out, cols, self.scale_factor, self.low, self.high, BLOCK=min(4096, triton.next_power_of_2(cols)))
        return out
