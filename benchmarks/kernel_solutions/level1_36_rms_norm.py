# /// submission
# id = "solution/level1_36"
# problem = "kernelbench 1/36"
# ///
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def rms_norm_kernel(x_ptr, out_ptr, channels, size, eps, BLOCK: tl.constexpr):
    image = tl.program_id(0)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = place < size
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for c in range(channels):
        x = tl.load(x_ptr + (image * channels + c) * size + place, mask=mask, other=0.0)
        total += x * x
    rms = tl.sqrt(total / channels + eps)
    for c in range(channels):
        x = tl.load(x_ptr + (image * channels + c) * size + place, mask=mask, other=0.0)
        tl.store(out_ptr + (image * channels + c) * size + place, x / rms, mask=mask)


class ModelNew(nn.Module):
    def __init__(self, num_features, eps=1e-5):
        super().__init__()
        self.num_features = num_features
        self.eps = eps

    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        batch, channels = x.shape[:2]
        size = x.numel() // (batch * channels)
        rms_norm_kernel[(batch, triton.cdiv(size, 1024))](x, out, channels, size, self.eps, BLOCK=1024)
        return out
