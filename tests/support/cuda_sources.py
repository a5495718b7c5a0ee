"""CUDA sources as models write them for `load_inline`: sound ones by what they show, and a module around each."""

from __future__ import annotations

from dataclasses import dataclass

_MODULE = '''
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

cuda_source = r"""
{cuda}
"""

cpp_source = """
{cpp}
"""

extension = load_inline(
    name="extension",
    cpp_sources=cpp_source,
    cuda_sources=cuda_source,
    functions={functions!r},
    verbose=False,
    extra_cuda_cflags={flags!r},
)


class ModelNew(nn.Module):
    def forward(self, x):
        return extension.run(x)
'''


@dataclass(frozen=True)
class Cuda:
    cuda: str
    cpp: str = "torch::Tensor run(torch::Tensor x);"
    functions: tuple[str, ...] = ("run",)
    flags: tuple[str, ...] = ("-O3",)

    @property
    def module(self) -> str:
        return _MODULE.format(cuda=self.cuda, cpp=self.cpp, functions=list(self.functions), flags=list(self.flags))


HEAD = """
#include <torch/extension.h>
#include <cuda_runtime.h>
"""

ELEMENTWISE = Cuda(
    HEAD
    + """
__global__ void scale_kernel(const float* __restrict__ x, float* __restrict__ y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] * 2.0f;
}

torch::Tensor run(torch::Tensor x) {
    auto y = torch::empty_like(x);
    int n = x.numel();
    scale_kernel<<<(n + 255) / 256, 256>>>(x.data_ptr<float>(), y.data_ptr<float>(), n);
    return y;
}
"""
)

SOUND: dict[str, Cuda] = {
    "elementwise": ELEMENTWISE,
    "reduction in shared memory": Cuda(
        HEAD
        + """
__global__ void sum_kernel(const float* x, float* out, int64_t n) {
    __shared__ float part[256];
    float total = 0.0f;
    for (int64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) total += x[i];
    part[threadIdx.x] = total;
    __syncthreads();
    for (int half = blockDim.x / 2; half > 0; half >>= 1) {
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) atomicAdd(out, part[0]);
}

torch::Tensor run(torch::Tensor x) {
    TORCH_CHECK(x.is_cuda(), "x must be a CUDA tensor, got ", x.device().type() == torch::kCPU ? "cpu" : "other");
    TORCH_CHECK(x.scalar_type() == torch::kFloat32);
    auto out = torch::zeros({1}, x.options());
    const int threads = 256;
    const int blocks = std::min<int64_t>((x.numel() + threads - 1) / threads, 1024);
    sum_kernel<<<blocks, threads>>>(x.contiguous().data_ptr<float>(), out.data_ptr<float>(), x.numel());
    return out;
}
"""
    ),
    "tiled matmul": Cuda(
        HEAD
        + """
#define TILE 32
__global__ void matmul_kernel(const float* A, const float* B, float* C, int M, int N, int K) {
    __shared__ float As[TILE][TILE];
    __shared__ float Bs[TILE][TILE + 1];
    int row = blockIdx.y * TILE + threadIdx.y, col = blockIdx.x * TILE + threadIdx.x;
    float acc = 0.0f;
    for (int t = 0; t < (K + TILE - 1) / TILE; ++t) {
        int k = t * TILE;
        As[threadIdx.y][threadIdx.x] = (row < M && k + threadIdx.x < K) ? A[row * K + k + threadIdx.x] : 0.0f;
        Bs[threadIdx.y][threadIdx.x] = (col < N && k + threadIdx.y < K) ? B[(k + threadIdx.y) * N + col] : 0.0f;
        __syncthreads();
        #pragma unroll
        for (int i = 0; i < TILE; ++i) acc += As[threadIdx.y][i] * Bs[i][threadIdx.x];
        __syncthreads();
    }
    if (row < M && col < N) C[row * N + col] = acc;
}

torch::Tensor run(torch::Tensor a, torch::Tensor b) {
    const int M = a.size(0), K = a.size(1), N = b.size(1);
    auto c = torch::empty({M, N}, torch::TensorOptions().dtype(a.dtype()).device(a.device()));
    dim3 block(TILE, TILE);
    dim3 grid((N + TILE - 1) / TILE, (M + TILE - 1) / TILE);
    matmul_kernel<<<grid, block>>>(a.data_ptr<float>(), b.data_ptr<float>(), c.data_ptr<float>(), M, N, K);
    return c;
}
""",
        "torch::Tensor run(torch::Tensor a, torch::Tensor b);",
    ),
    "softmax with warp shuffles": Cuda(
        HEAD
        + """
#include <cfloat>
__inline__ __device__ float warp_max(float v) {
    for (int offset = 16; offset > 0; offset /= 2) v = fmaxf(v, __shfl_xor_sync(0xffffffff, v, offset));
    return v;
}
__inline__ __device__ float warp_sum(float v) {
    for (int offset = 16; offset > 0; offset /= 2) v += __shfl_xor_sync(0xffffffff, v, offset);
    return v;
}
__global__ void softmax_kernel(const float* x, float* y, int cols) {
    const float* row = x + (size_t)blockIdx.x * cols;
    float m = -FLT_MAX;
    for (int i = threadIdx.x; i < cols; i += 32) m = fmaxf(m, row[i]);
    m = warp_max(m);
    float s = 0.f;
    for (int i = threadIdx.x; i < cols; i += 32) s += __expf(row[i] - m);
    s = warp_sum(s);
    for (int i = threadIdx.x; i < cols; i += 32) y[(size_t)blockIdx.x * cols + i] = __expf(row[i] - m) / s;
}
torch::Tensor run(torch::Tensor x) {
    auto sizes = x.sizes();
    auto flat = x.view({-1, sizes[sizes.size() - 1]});
    auto y = torch::empty_like(flat);
    softmax_kernel<<<flat.size(0), 32>>>(flat.data_ptr<float>(), y.data_ptr<float>(), flat.size(1));
    cudaError_t err = cudaGetLastError();
    TORCH_CHECK(err == cudaSuccess, "softmax failed: ", cudaGetErrorString(err));
    return y.view(x.sizes());
}
""",
        flags=("-O3", "--use_fast_math"),
    ),
    "half with intrinsics": Cuda(
        HEAD
        + """
#include <cuda_fp16.h>
__global__ void half_kernel(const __half* x, const half2* pairs, __half* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float v = __half2float(x[i]);
    half2 p = __hadd2(pairs[i / 2], __float2half2_rn(1.0f));
    y[i] = __hadd(__float2half(v * 0.5f), __low2half(p));
}
torch::Tensor run(torch::Tensor x) {
    auto y = torch::empty_like(x, x.options().dtype(torch::kHalf));
    int n = x.numel();
    half_kernel<<<(n + 127) / 128, 128>>>(reinterpret_cast<const __half*>(x.data_ptr<at::Half>()),
                                          reinterpret_cast<const half2*>(x.data_ptr()),
                                          reinterpret_cast<__half*>(y.data_ptr<at::Half>()), n);
    return y;
}
"""
    ),
    "bfloat16": Cuda(
        HEAD
        + """
#include <cuda_bf16.h>
__global__ void bf16_kernel(const __nv_bfloat16* x, at::BFloat16* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = static_cast<at::BFloat16>(__bfloat162float(x[i]) + 1.0f);
}
torch::Tensor run(torch::Tensor x) {
    auto y = torch::empty(x.sizes(), x.options().dtype(at::kBFloat16));
    bf16_kernel<<<1, 32>>>((const __nv_bfloat16*)x.data_ptr<at::BFloat16>(), y.data_ptr<at::BFloat16>(), x.numel());
    return y;
}
"""
    ),
    "histogram with atomics": Cuda(
        HEAD
        + """
__global__ void histogram(const int64_t* x, int* counts, int n, int bins) {
    extern __shared__ int local[];
    for (int b = threadIdx.x; b < bins; b += blockDim.x) local[b] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x)
        atomicAdd(&local[x[i] % bins], 1);
    __syncthreads();
    for (int b = threadIdx.x; b < bins; b += blockDim.x) atomicAdd(counts + b, local[b]);
}
torch::Tensor run(torch::Tensor x, int64_t bins) {
    auto counts = torch::zeros({bins}, torch::dtype(torch::kInt32).device(torch::kCUDA, x.get_device()));
    histogram<<<64, 256, bins * sizeof(int)>>>(x.data_ptr<int64_t>(), counts.data_ptr<int>(), x.numel(), (int)bins);
    return counts;
}
""",
        "torch::Tensor run(torch::Tensor x, int64_t bins);",
    ),
    "templates over dtype and size": Cuda(
        HEAD
        + """
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
template <typename scalar_t, int VEC>
__global__ void gelu_kernel(const scalar_t* __restrict__ x, scalar_t* __restrict__ y, const size_t n) {
    const size_t start = (size_t(blockIdx.x) * blockDim.x + threadIdx.x) * VEC;
    #pragma unroll
    for (int v = 0; v < VEC; ++v) {
        if (start + v < n) {
            const float value = static_cast<float>(x[start + v]);
            y[start + v] = static_cast<scalar_t>(0.5f * value * (1.0f + erff(value * 0.70710678f)));
        }
    }
}
torch::Tensor run(torch::Tensor x) {
    auto out = at::empty_like(x);
    const auto n = x.numel();
    const dim3 grid((n + 1023) / 1024);
    auto stream = at::cuda::getCurrentCUDAStream();
    AT_DISPATCH_FLOATING_TYPES_AND2(at::ScalarType::Half, at::ScalarType::BFloat16, x.scalar_type(), "gelu", [&] {
        gelu_kernel<scalar_t, 4><<<grid, 256, 0, stream>>>(x.data_ptr<scalar_t>(), out.data_ptr<scalar_t>(), n);
    });
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
}
"""
    ),
    "cooperative groups": Cuda(
        HEAD
        + """
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
__global__ void rows(const float* x, float* y, int cols) {
    cg::thread_block block = cg::this_thread_block();
    auto warp = cg::tiled_partition<32>(block);
    float total = 0;
    for (int i = block.thread_rank(); i < cols; i += block.size()) total += x[blockIdx.x * cols + i];
    for (int offset = warp.size() / 2; offset > 0; offset /= 2) total += warp.shfl_down(total, offset);
    if (warp.thread_rank() == 0) atomicAdd(&y[blockIdx.x], total);
}
torch::Tensor run(torch::Tensor x) {
    auto y = torch::zeros({x.size(0)}, x.options());
    rows<<<x.size(0), 128>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.size(1));
    return y;
}
"""
    ),
    "several kernels and streams": Cuda(
        HEAD
        + """
#include <c10/cuda/CUDAStream.h>
#include <c10/cuda/CUDAGuard.h>
__device__ __forceinline__ float square(float v) { return v * v; }
__global__ void squares(const float* x, float* y, int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = square(x[i]);
}
__global__ void normalise(float* y, const float* total, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] *= rsqrtf(total[0] / n + 1e-5f);
}
std::vector<torch::Tensor> run(const torch::Tensor& x) {
    const at::cuda::OptionalCUDAGuard device_guard(device_of(x));
    cudaStream_t stream = c10::cuda::getCurrentCUDAStream().stream();
    torch::Tensor y = torch::empty_like(x);
    int n = static_cast<int>(x.numel());
    squares<<<1, 256, 0, stream>>>(x.data_ptr<float>(), y.data_ptr<float>(), n);
    torch::Tensor total = y.sum();
    normalise<<<at::ceil_div(n, 256), 256, 0, stream>>>(y.data_ptr<float>(), total.data_ptr<float>(), n);
    return {y, total};
}
""",
        "std::vector<torch::Tensor> run(const torch::Tensor& x);",
    ),
    "packed accessors": Cuda(
        HEAD
        + """
template <typename scalar_t>
__global__ void pool(const torch::PackedTensorAccessor32<scalar_t, 4, torch::RestrictPtrTraits> x,
                     torch::PackedTensorAccessor32<scalar_t, 2, torch::RestrictPtrTraits> y) {
    const int n = blockIdx.x, c = threadIdx.x;
    scalar_t best = x[n][c][0][0];
    for (int h = 0; h < x.size(2); ++h)
        for (int w = 0; w < x.size(3); ++w) best = best > x[n][c][h][w] ? best : x[n][c][h][w];
    y[n][c] = best;
}
torch::Tensor run(torch::Tensor x) {
    auto y = torch::empty({x.size(0), x.size(1)}, x.options());
    AT_DISPATCH_FLOATING_TYPES(x.type(), "pool", ([&] {
        pool<scalar_t><<<x.size(0), x.size(1)>>>(x.packed_accessor32<scalar_t, 4, torch::RestrictPtrTraits>(),
                                                 y.packed_accessor32<scalar_t, 2, torch::RestrictPtrTraits>());
    }));
    return y;
}
"""
    ),
    "large dynamic shared memory": Cuda(
        HEAD
        + """
__global__ void big(float* x) {
    extern __shared__ __align__(16) unsigned char raw[];
    float* tile = reinterpret_cast<float*>(raw);
    tile[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = tile[blockDim.x - 1 - threadIdx.x];
}
torch::Tensor run(torch::Tensor x) {
    const int bytes = 160 * 1024;
    (void)(cudaFuncSetAttribute(big, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    big<<<1, 1024, bytes>>>(x.data_ptr<float>());
    return x;
}
"""
    ),
    "float4 and constant memory": Cuda(
        HEAD
        + """
__constant__ float weights[64];
__global__ void __launch_bounds__(256, 2) affine(const float4* __restrict__ x, float4* __restrict__ y, int n4) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n4) return;
    float4 v = __ldg(&x[i]);
    v.x = fmaf(v.x, weights[0], weights[1]);
    v.w = fmaf(v.w, weights[2], weights[3]);
    y[i] = make_float4(v.x, v.y, v.z, v.w);
}
torch::Tensor run(torch::Tensor x) {
    auto y = torch::empty_like(x);
    float host[64] = {1.0f};
    cudaMemcpyToSymbol(weights, host, sizeof(host));
    int n4 = x.numel() / 4;
    affine<<<(n4 + 255) / 256, 256>>>(reinterpret_cast<float4*>(x.data_ptr<float>()),
                                      reinterpret_cast<float4*>(y.data_ptr<float>()), n4);
    return y;
}
"""
    ),
    "bindings of its own": Cuda(
        HEAD
        + """
__global__ void fill(float* y, float v, int n) { int i = threadIdx.x; if (i < n) y[i] = v; }
torch::Tensor run(torch::Tensor x, double value) {
    fill<<<1, 128>>>(x.data_ptr<float>(), value, x.numel());
    return x;
}
""",
        """
#include <torch/extension.h>
torch::Tensor run(torch::Tensor x, double value = 1.0);
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    m.def("run", &run, "fill with a value", py::arg("x"), py::arg("value") = 1.0);
}
""",
        (),
    ),
    "tensor cores": Cuda(
        HEAD
        + """
#include <mma.h>
#include <cuda_fp16.h>
using namespace nvcuda;
__global__ void mma(const half* a, const half* b, float* c) {
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> fa;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> fb;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> fc;
    wmma::fill_fragment(fc, 0.0f);
    wmma::load_matrix_sync(fa, a, 16);
    wmma::load_matrix_sync(fb, b, 16);
    wmma::mma_sync(fc, fa, fb, fc);
    wmma::store_matrix_sync(c, fc, 16, wmma::mem_row_major);
}
torch::Tensor run(torch::Tensor a) {
    auto c = torch::zeros({16, 16}, a.options().dtype(torch::kFloat));
    mma<<<1, 32>>>((half*)a.data_ptr<at::Half>(), (half*)a.data_ptr<at::Half>(), c.data_ptr<float>());
    return c;
}
""",
        "torch::Tensor run(torch::Tensor a);",
    ),
    "inline assembly and lambdas": Cuda(
        HEAD
        + """
#include <functional>
__device__ unsigned lane() { unsigned id; asm volatile("mov.u32 %0, %%laneid;" : "=r"(id)); return id; }
template <typename F>
__global__ void apply(float* x, int n, F f) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = f(x[i]) + lane();
}
struct Square { __device__ float operator()(float v) const { return v * v; } };
torch::Tensor run(torch::Tensor x, c10::optional<torch::Tensor> bias) {
    auto y = bias.has_value() ? x + bias.value() : x.clone();
    std::function<int(int)> blocks = [](int n) { return (n + 255) / 256; };
    apply<<<blocks(y.numel()), 256>>>(y.data_ptr<float>(), (int)y.numel(), Square());
    return y;
}
""",
        "torch::Tensor run(torch::Tensor x, c10::optional<torch::Tensor> bias);",
    ),
    "default arguments on both sides": Cuda(
        HEAD
        + """
__global__ void add(float* x, float v) { x[threadIdx.x] += v; }
torch::Tensor run(torch::Tensor x, double v = 1.0) {
    add<<<1, 32>>>(x.data_ptr<float>(), v);
    return x;
}
""",
        "torch::Tensor run(torch::Tensor x, double v = 1.0);",
    ),
}
"""What must be accepted."""
