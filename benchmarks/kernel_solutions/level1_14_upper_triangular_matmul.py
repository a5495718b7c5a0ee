# /// submission
# id = "solution/level1_14"
# problem = "kernelbench 1/14"
# ///
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def triangular_kernel(a_ptr, b_ptr, c_ptr, N, UPPER: tl.constexpr, BLOCK: tl.constexpr):
    pid_m, pid_n = tl.program_id(0), tl.program_id(1)
    rows = pid_m * BLOCK + tl.arange(0, BLOCK)
    cols = pid_n * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    # Only the blocks between the two triangles can hold anything but zeros.
    first, last = (pid_m, pid_n + 1) if UPPER else (pid_n, pid_m + 1)
    for block in range(first, last):
        ks = block * BLOCK + tl.arange(0, BLOCK)
        a = tl.load(a_ptr + rows[:, None] * N + ks[None, :], mask=(rows[:, None] < N) & (ks[None, :] < N), other=0.0)
        b = tl.load(b_ptr + ks[:, None] * N + cols[None, :], mask=(ks[:, None] < N) & (cols[None, :] < N), other=0.0)
        total += tl.dot(a, b, input_precision="ieee")
    kept = (rows[:, None] <= cols[None, :]) if UPPER else (rows[:, None] >= cols[None, :])
    inside = (rows[:, None] < N) & (cols[None, :] < N)
    tl.store(c_ptr + rows[:, None] * N + cols[None, :], tl.where(kept, total, 0.0), mask=inside)


class ModelNew(nn.Module):
    def forward(self, A, B):
        N = A.shape[0]
        C = torch.empty_like(A)
        grid = (triton.cdiv(N, 16), triton.cdiv(N, 16))
        triangular_kernel[grid](A.contiguous(), B.contiguous(), C, N, UPPER=True, BLOCK=16)
        return C
