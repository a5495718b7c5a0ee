# A whole solution of problem 1/1, x + sin(a x)^2 / a with one a per feature, to begin with. Grade it:
#
#     assay grade --problem 1/1 --kernel THIS_FILE
#
# Then change the kernel, grade it again, and see what the verdict says. `assay grade --list` shows further problems.
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def snake_kernel(x_ptr, frequency_ptr, out_ptr, n_elements, features, BLOCK: tl.constexpr):
    # One program handles BLOCK elements of the flattened input; the mask keeps the last one inside the tensors.
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n_elements
    x = tl.load(x_ptr + offsets, mask=mask)
    # x has shape (batch_size, features), so the feature of an element is its offset modulo `features`.
    a = tl.load(frequency_ptr + offsets % features, mask=mask, other=1.0)
    s = tl.sin(a * x)
    tl.store(out_ptr + offsets, x + s * s / a, mask=mask)


class ModelNew(nn.Module):
    # The constructor of the problem's Model: it makes the same parameters in the same order, so that the same random
    # seed gives them the same values.
    def __init__(self, features):
        super().__init__()
        self.frequency = nn.Parameter(torch.rand(features) + 0.5)

    # PyTorch makes the output and the kernel fills it; torch.sin here would be graded `cheat`.
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        out = torch.empty_like(x)
        n_elements = x.numel()
        grid = (triton.cdiv(n_elements, 512),)
        snake_kernel[grid](x, self.frequency, out, n_elements, x.shape[-1], BLOCK=512)
        return out
