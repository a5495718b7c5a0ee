# /// submission
# id = "solution/level1_33"
# problem = "kernelbench 1/33"
# ///
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def batch_norm_kernel(x_ptr, w_ptr, b_ptr, out_ptr, batch, channels, size, eps, BLOCK: tl.constexpr):
    """One channel a program, in training mode: statistics over the batch and all places."""
    channel = tl.program_id(0)
    count = batch * size
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, count, BLOCK):
        i = start + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + (i // size * channels + channel) * size + i % size, mask=i < count, other=0.0)
    mean = tl.sum(total, axis=0) / count
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, count, BLOCK):
        i = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + (i // size * channels + channel) * size + i % size, mask=i < count, other=0.0)
        centred = tl.where(i < count, x - mean, 0.0)
        total += centred * centred
    scale = tl.rsqrt(tl.sum(total, axis=0) / count + eps) * tl.load(w_ptr + channel)
    shift = tl.load(b_ptr + channel)
    for start in range(0, count, BLOCK):
        i = start + tl.arange(0, BLOCK)
        place = (i // size * channels + channel) * size + i % size
        x = tl.load(x_ptr + place, mask=i < count, other=0.0)
        tl.store(out_ptr + place, (x - mean) * scale + shift, mask=i < count)


class ModelNew(nn.Module):
    def __init__(self, num_features):
        super().__init__()
        self.bn = nn.BatchNorm2d(num_features=num_features)

    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        batch, channels = x.shape[:2]
        size = x.numel() // (batch * channels)
        batch_norm_kernel[(channels,)](x, self.bn.weight, self.bn.bias, out, batch, channels, size, self.bn.eps, BLOCK=2048)
        return out
