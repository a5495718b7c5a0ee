// PyTorch's CUDA streams, guards and checks, declared; and what its headers lend to device code.
#pragma once

#include <cuda_runtime.h>

#include "light_torch.h"

#define C10_CUDA_CHECK(call) ::c10::light::cuda_check(call)
#define C10_CUDA_CHECK_WARN(call) ::c10::light::cuda_check(call)
#define C10_CUDA_IGNORE_ERROR(call) ::c10::light::cuda_check(call)
#define C10_CUDA_KERNEL_LAUNCH_CHECK() C10_CUDA_CHECK(cudaGetLastError())
#define TORCH_CUDA_KERNEL_LAUNCH_CHECK() C10_CUDA_KERNEL_LAUNCH_CHECK()
#define AT_CUDA_CHECK(call) C10_CUDA_CHECK(call)

#define CUDA_KERNEL_LOOP_TYPE(i, n, index_type)                                            \
  for (index_type i = (index_type)blockIdx.x * blockDim.x + threadIdx.x; i < (n); \
       i += (index_type)blockDim.x * gridDim.x)
#define CUDA_KERNEL_LOOP(i, n) CUDA_KERNEL_LOOP_TYPE(i, n, int)

namespace c10 {
namespace light {
void cuda_check(cudaError_t status);
}
struct Stream {};
}  // namespace c10

namespace c10::cuda {
class CUDAStream {
 public:
  operator cudaStream_t() const;
  operator c10::Stream() const;
  cudaStream_t stream() const;
  DeviceIndex device_index() const;
  Device device() const;
  c10::Stream unwrap() const;
  void synchronize() const;
  bool query() const;
};
CUDAStream getCurrentCUDAStream(DeviceIndex device = -1);
CUDAStream getDefaultCUDAStream(DeviceIndex device = -1);
CUDAStream getStreamFromPool(bool high_priority = false, DeviceIndex device = -1);
void setCurrentCUDAStream(CUDAStream stream);
DeviceIndex device_count() noexcept;
DeviceIndex current_device();
void set_device(DeviceIndex device);
void device_synchronize();

struct CUDAGuard {
  explicit CUDAGuard(DeviceIndex device);
  explicit CUDAGuard(Device device);
  CUDAGuard(const CUDAGuard&) = delete;
  void set_device(Device device);
  void set_index(DeviceIndex device);
  Device current_device() const;
};
struct OptionalCUDAGuard {
  OptionalCUDAGuard();
  explicit OptionalCUDAGuard(std::optional<Device> device);
  explicit OptionalCUDAGuard(Device device);
  void set_device(Device device);
};
struct CUDAStreamGuard {
  explicit CUDAStreamGuard(c10::Stream stream);
};

namespace compat {
#ifdef __CUDACC__
#define LIGHT_COMPAT(name)                                                        \
  __device__ __forceinline__ float name(float x) { return ::name##f(x); }         \
  __device__ __forceinline__ double name(double x) { return ::name(x); }
LIGHT_COMPAT(exp)
LIGHT_COMPAT(log)
LIGHT_COMPAT(log1p)
LIGHT_COMPAT(sqrt)
LIGHT_COMPAT(rsqrt)
LIGHT_COMPAT(tanh)
LIGHT_COMPAT(erf)
LIGHT_COMPAT(normcdf)
LIGHT_COMPAT(ceil)
LIGHT_COMPAT(floor)
__device__ __forceinline__ float pow(float x, float y) { return ::powf(x, y); }
__device__ __forceinline__ double pow(double x, double y) { return ::pow(x, y); }
__device__ __forceinline__ float max(float x, float y) { return ::fmaxf(x, y); }
__device__ __forceinline__ double max(double x, double y) { return ::fmax(x, y); }
__device__ __forceinline__ float min(float x, float y) { return ::fminf(x, y); }
__device__ __forceinline__ double min(double x, double y) { return ::fmin(x, y); }
#endif
}  // namespace compat
}  // namespace c10::cuda

namespace at {
std::optional<Device> device_of(const Tensor& x);
template <typename T>
using numeric_limits = std::numeric_limits<T>;
namespace cuda {
using c10::cuda::CUDAGuard;
using c10::cuda::CUDAStream;
using c10::cuda::CUDAStreamGuard;
using c10::cuda::OptionalCUDAGuard;
using c10::cuda::current_device;
using c10::cuda::device_count;
using c10::cuda::getCurrentCUDAStream;
using c10::cuda::getDefaultCUDAStream;
using c10::cuda::getStreamFromPool;
using c10::cuda::setCurrentCUDAStream;
cudaDeviceProp* getCurrentDeviceProperties();
cudaDeviceProp* getDeviceProperties(c10::DeviceIndex device);
int warp_size();
template <typename T>
C10_HOST_DEVICE constexpr T ATenCeilDiv(T a, T b) { return (a + b - 1) / b; }
}  // namespace cuda
}  // namespace at

namespace torch::cuda {
using namespace at::cuda;
void synchronize(int64_t device = -1);
bool is_available();
}  // namespace torch::cuda

#ifdef __CUDACC__
template <typename T>
__device__ __forceinline__ T WARP_SHFL_DOWN(T value, unsigned delta, int width = 32, unsigned mask = 0xffffffff) {
  return __shfl_down_sync(mask, value, delta, width);
}
template <typename T>
__device__ __forceinline__ T WARP_SHFL_XOR(T value, int lanes, int width = 32, unsigned mask = 0xffffffff) {
  return __shfl_xor_sync(mask, value, lanes, width);
}
template <typename T>
__device__ __forceinline__ T WARP_SHFL(T value, int lane, int width = 32, unsigned mask = 0xffffffff) {
  return __shfl_sync(mask, value, lane, width);
}
__device__ inline float gpuAtomicAdd(float* place, float value) { return atomicAdd(place, value); }
__device__ inline double gpuAtomicAdd(double* place, double value) { return atomicAdd(place, value); }
__device__ inline int gpuAtomicAdd(int* place, int value) { return atomicAdd(place, value); }
__device__ c10::Half gpuAtomicAdd(c10::Half* place, c10::Half value);
__device__ c10::BFloat16 gpuAtomicAdd(c10::BFloat16* place, c10::BFloat16 value);
#endif
