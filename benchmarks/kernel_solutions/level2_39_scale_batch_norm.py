# /// submission
# id = "solution/level2_39"
# problem = "kernelbench 2/39"
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
def column_norm_kernel(x_ptr, w_ptr, b_ptr, out_ptr, rows, cols, eps, s_ptr, BLOCK: tl.constexpr):
    """Batch normalisation in training mode, a column a program."""
    col = tl.program_id(0)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, rows, BLOCK):
        r = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + r * cols + col, mask=r < rows, other=0.0)
        x = x * tl.load(s_ptr + col)
        total += x
    mean = tl.sum(total, axis=0) / rows
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, rows, BLOCK):
        r = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + r * cols + col, mask=r < rows, other=0.0)
        x = x * tl.load(s_ptr + col)
        centred = tl.where(r < rows, x - mean, 0.0)
        total += centred * centred
    scale = tl.rsqrt(tl.sum(total, axis=0) / rows + eps) * tl.load(w_ptr + col)
    shift = tl.load(b_ptr + col)
    for start in range(0, rows, BLOCK):
        r = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + r * cols + col, mask=r < rows, other=0.0)
        x = x * tl.load(s_ptr + col)
        y = (x - mean) * scale + shift
        tl.store(out_ptr + r * cols + col, y, mask=r < rows)


class ModelNew(nn.Module):
    def __init__(self, in_features, out_features, scale_shape, eps=1e-5, momentum=0.1):
        super().__init__()
        self.gemm = nn.Linear(in_features, out_features)
        self.scale = nn.Parameter(torch.randn(scale_shape))
        self.bn = nn.BatchNorm1d(out_features, eps=eps, momentum=momentum)

    def forward(self, x):
        y = linear(self.gemm, x)
        rows, cols = y.shape
        out = torch.empty_like(y)
        norm = self.bn
        column_norm_kernel[(cols,)](
            y, norm.weight, norm.bias, out, rows, cols, norm.eps, self.scale, BLOCK=min(4096, triton.next_power_of_2(rows))
        )
        return out
