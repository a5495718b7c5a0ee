# A whole solution of problem 1/1, x + sin(a x)^2 / a with one a per feature, to begin with. Grade it:
#
#     assay grade --problem 1/1 --kernel THIS_FILE --backend cuda                  compile it (`compiled_not_run`)
#     assay grade --problem 1/1 --kernel THIS_FILE --backend cuda device=cuda      run it on a GPU
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>

__global__ void snake_kernel(const float* x, const float* frequency, float* out, int n_elements, int features) {
    // One thread handles one element of the flattened input.
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n_elements) return;
    // x has shape (batch_size, features), so the feature of an element is its place modulo `features`.
    float a = frequency[i % features];
    float s = sinf(a * x[i]);
    out[i] = x[i] + s * s / a;
}

torch::Tensor snake(torch::Tensor x, torch::Tensor frequency) {
    auto out = torch::empty_like(x);
    int n_elements = x.numel();
    snake_kernel<<<(n_elements + 255) / 256, 256>>>(
        x.data_ptr<float>(), frequency.data_ptr<float>(), out.data_ptr<float>(), n_elements, x.size(-1));
    return out;
}
"""

extension = load_inline(
    name="snake",
    cpp_sources="torch::Tensor snake(torch::Tensor x, torch::Tensor frequency);",
    cuda_sources=CUDA,
    functions=["snake"],
)


class ModelNew(nn.Module):
    # The constructor of the problem's Model: it makes the same parameters in the same order, so that the same random
    # seed gives them the same values.
    def __init__(self, features):
        super().__init__()
        self.frequency = nn.Parameter(torch.rand(features) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return extension.snake(x.contiguous(), self.frequency)
