# /// submission
# id = "solution/level2_55"
# problem = "kernelbench 2/55"
# ///
import torch
import torch.nn as nn
import triton
import triton.language as tl


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
def pool_sum_kernel(x_ptr, out_ptr, cols, windows, scale, WINDOW: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, windows, BLOCK):
        p = start + tl.arange(0, BLOCK)
        best = tl.full((BLOCK,), float("-inf"), dtype=tl.float32)
        for i in tl.static_range(WINDOW):
            x = tl.load(x_ptr + row * cols + p * WINDOW + i, mask=p < windows, other=0.0)
            best = tl.maximum(best, x)
        total += tl.where(p < windows, best, 0.0)
    tl.store(out_ptr + row, tl.sum(total, axis=0) * scale)


class ModelNew(nn.Module):
    def __init__(self, in_features, out_features, kernel_size, scale_factor):
        super().__init__()
        self.matmul = nn.Linear(in_features, out_features)
        self.kernel_size, self.scale_factor = kernel_size, scale_factor

    def forward(self, x):
        y = linear(self.matmul, x)
        rows, cols = y.shape
        windows = cols // self.kernel_size
        out = torch.empty(rows, device=x.device, dtype=x.dtype)
        pool_sum_kernel[(rows,)](
            y, out, cols, windows, self.scale_factor, WINDOW=self.kernel_size, BLOCK=min(2048, triton.next_power_of_2(windows))
        )
        return out
