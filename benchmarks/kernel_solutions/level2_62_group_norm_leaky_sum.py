# /// submission
# id = "solution/level2_62"
# problem = "kernelbench 2/62"
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
def group_norm_kernel(x_ptr, w_ptr, b_ptr, out_ptr, groups, per_group, eps, slope, BLOCK: tl.constexpr):
    """Group normalisation of a matrix: one row's group a program."""
    program = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    mask = i < per_group
    channel = program % groups * per_group + i
    x = tl.load(x_ptr + program * per_group + i, mask=mask, other=0.0)
    mean = tl.sum(tl.where(mask, x, 0.0), axis=0) / per_group
    centred = tl.where(mask, x - mean, 0.0)
    rstd = tl.rsqrt(tl.sum(centred * centred, axis=0) / per_group + eps)
    y = centred * rstd * tl.load(w_ptr + channel, mask=mask, other=0.0) + tl.load(b_ptr + channel, mask=mask, other=0.0)
    y = tl.where(y > 0, y, y * slope) * 2.0
    tl.store(out_ptr + program * per_group + i, y, mask=mask)


class ModelNew(nn.Module):
    def __init__(self, input_size, hidden_size, num_groups, eps=1e-5, negative_slope=0.01):
        super().__init__()
        self.fc = nn.Linear(input_size, hidden_size)
        self.gn = nn.GroupNorm(num_groups=num_groups, num_channels=hidden_size, eps=eps)
        self.negative_slope = negative_slope

    def forward(self, x):
        y = linear(self.fc, x)
        norm = self.gn
        rows, cols = y.shape
        per_group = cols // norm.num_groups
        out = torch.empty_like(y)
        group_norm_kernel[(rows * norm.num_groups,)](
            y, norm.weight, norm.bias, out, norm.num_groups, per_group, norm.eps, self.negative_slope, BLOCK=triton.next_power_of_2(per_group)
        )
        return out
