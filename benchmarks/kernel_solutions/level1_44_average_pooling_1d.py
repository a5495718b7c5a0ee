# /// submission
# id = "solution/level1_44"
# problem = "kernelbench 1/44"
# ///
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def average_pool_kernel(x_ptr, out_ptr, length, windows, PADDING, STRIDE: tl.constexpr, WINDOW: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for i in tl.static_range(WINDOW):
        source = place * STRIDE + i - PADDING
        inside = (place < windows) & (source >= 0) & (source < length)
        total += tl.load(x_ptr + row * length + source, mask=inside, other=0.0)
    tl.store(out_ptr + row * windows + place, total / WINDOW, mask=place < windows)


class ModelNew(nn.Module):
    def __init__(self, kernel_size, stride=1, padding=0):
        super().__init__()
        self.window, self.stride, self.padding = kernel_size, stride, padding

    def forward(self, x):
        batch, channels, length = x.shape
        windows = (length + 2 * self.padding - self.window) // self.stride + 1
        out = torch.empty((batch, channels, windows), device=x.device, dtype=x.dtype)
        grid = (batch * channels, triton.cdiv(windows, 1024))
        average_pool_kernel[grid](
            x.contiguous(), out, length, windows, self.padding, STRIDE=self.stride, WINDOW=self.window, BLOCK=1024
        )
        return out
