# /// submission
# id = "solution/level1_2"
# problem = "kernelbench 1/2"
# ///
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def matmul_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, sab, sam, sak, sbb, sbk, sbn,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """C[batch] = A[batch] B[batch], with any strides, one tile of C a program."""
    batch = tl.program_id(2)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, K, BK):
        ks = start + tl.arange(0, BK)
        a_in = (rows[:, None] < M) & (ks[None, :] < K)
        b_in = (ks[:, None] < K) & (cols[None, :] < N)
        a = tl.load(a_ptr + batch * sab + rows[:, None] * sam + ks[None, :] * sak, mask=a_in, other=0.0)
        b = tl.load(b_ptr + batch * sbb + ks[:, None] * sbk + cols[None, :] * sbn, mask=b_in, other=0.0)
        total += tl.dot(a, b, input_precision="ieee")
    inside = (rows[:, None] < M) & (cols[None, :] < N)
    tl.store(c_ptr + batch * M * N + rows[:, None] * N + cols[None, :], total, mask=inside)


def multiply(a, b, batch=1):
    """The product of two matrices, or of two stacks of them, whatever their strides."""
    M, K = a.shape[-2:]
    N = b.shape[-1]
    c = torch.empty((batch, M, N), device=a.device, dtype=a.dtype)
    sab = a.stride(0) if a.dim() == 3 else 0
    sbb = b.stride(0) if b.dim() == 3 else 0
    grid = (triton.cdiv(M, 32), triton.cdiv(N, 32), batch)
    matmul_kernel[grid](
        a, b, c, M, N, K, sab, a.stride(-2), a.stride(-1), sbb, b.stride(-2), b.stride(-1), BM=32, BN=32, BK=32
    )
    return c


class ModelNew(nn.Module):
    def forward(self, A, B):
        return multiply(A, B)[0]
