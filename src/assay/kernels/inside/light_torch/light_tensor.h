// at::Tensor and the functions that host code calls on it. Declared, never linked; accessors have bodies for the device.
#pragma once

namespace at {
using namespace c10;
using c10::Half;
using c10::BFloat16;

template <typename T>
struct DefaultPtrTraits { typedef T* PtrType; };
template <typename T>
struct RestrictPtrTraits { typedef T* __restrict__ PtrType; };

template <typename T, size_t N, template <typename U> class Traits = DefaultPtrTraits, typename Index = int64_t>
class GenericPackedTensorAccessor {
 public:
  typedef typename Traits<T>::PtrType PtrType;
  C10_HOST_DEVICE GenericPackedTensorAccessor(PtrType data, const Index* sizes, const Index* strides) : data_(data) {
    for (size_t i = 0; i < N; i++) sizes_[i] = sizes[i], strides_[i] = strides[i];
  }
  C10_HOST_DEVICE Index size(Index i) const { return sizes_[i]; }
  C10_HOST_DEVICE Index stride(Index i) const { return strides_[i]; }
  C10_HOST_DEVICE const Index* sizes() const { return sizes_; }
  C10_HOST_DEVICE const Index* strides() const { return strides_; }
  C10_HOST_DEVICE PtrType data() const { return data_; }
  C10_HOST_DEVICE decltype(auto) operator[](Index i) const {
    if constexpr (N == 1) {
      return static_cast<T&>(data_[strides_[0] * i]);
    } else {
      return GenericPackedTensorAccessor<T, N - 1, Traits, Index>(data_ + strides_[0] * i, sizes_ + 1, strides_ + 1);
    }
  }

 private:
  PtrType data_;
  Index sizes_[N], strides_[N];
};
template <typename T, size_t N, template <typename U> class Traits = DefaultPtrTraits>
using PackedTensorAccessor32 = GenericPackedTensorAccessor<T, N, Traits, int32_t>;
template <typename T, size_t N, template <typename U> class Traits = DefaultPtrTraits>
using PackedTensorAccessor64 = GenericPackedTensorAccessor<T, N, Traits, int64_t>;
template <typename T, size_t N, template <typename U> class Traits = DefaultPtrTraits, typename Index = int64_t>
using TensorAccessor = GenericPackedTensorAccessor<T, N, Traits, Index>;

class Generator;
class Tensor {
 public:
  Tensor();
  Tensor(const Tensor&);
  Tensor(Tensor&&) noexcept;
  Tensor& operator=(const Tensor&);
  Tensor& operator=(Tensor&&) noexcept;
  Tensor& operator=(const Scalar&) &&;
  ~Tensor();

  bool defined() const;
  void reset();
  bool is_same(const Tensor& other) const;
  int64_t dim() const;
  int64_t ndimension() const;
  int64_t numel() const;
  int64_t size(int64_t dim) const;
  int64_t stride(int64_t dim) const;
  IntArrayRef sizes() const;
  IntArrayRef strides() const;
  int64_t storage_offset() const;
  const Storage& storage() const;
  size_t nbytes() const;
  int64_t itemsize() const;
  int64_t element_size() const;
  caffe2::TypeMeta dtype() const;
  ScalarType scalar_type() const;
  Device device() const;
  int64_t get_device() const;
  DeviceIndex device_index() const;
  Layout layout() const;
  TensorOptions options() const;
  bool is_cuda() const;
  bool is_cpu() const;
  bool is_sparse() const;
  bool is_floating_point() const;
  bool is_complex() const;
  bool is_contiguous(MemoryFormat format = MemoryFormat::Contiguous) const;
  bool is_non_overlapping_and_dense() const;
  bool requires_grad() const;
  const Tensor& requires_grad_(bool required = true) const;
  const Tensor& grad() const;
  Tensor detach() const;
  MemoryFormat suggest_memory_format() const;

  void* data_ptr() const;
  const void* const_data_ptr() const;
  void* mutable_data_ptr() const;
  template <typename T>
  T* data_ptr() const;
  template <typename T>
  const T* const_data_ptr() const;
  template <typename T>
  T* mutable_data_ptr() const;
  template <typename T>
  T* data() const;
  template <typename T>
  T item() const;
  Scalar item() const;
  template <typename T, size_t N>
  TensorAccessor<T, N> accessor() const;
  template <typename T, size_t N, template <typename U> class Traits = DefaultPtrTraits, typename Index = int64_t>
  GenericPackedTensorAccessor<T, N, Traits, Index> generic_packed_accessor() const;
  template <typename T, size_t N, template <typename U> class Traits = DefaultPtrTraits>
  PackedTensorAccessor32<T, N, Traits> packed_accessor32() const;
  template <typename T, size_t N, template <typename U> class Traits = DefaultPtrTraits>
  PackedTensorAccessor64<T, N, Traits> packed_accessor64() const;
  template <typename T, size_t N, template <typename U> class Traits = DefaultPtrTraits, typename Index = int64_t>
  GenericPackedTensorAccessor<T, N, Traits, Index> packed_accessor() const;

  Tensor contiguous(MemoryFormat format = MemoryFormat::Contiguous) const;
  Tensor to(ScalarType type, bool non_blocking = false, bool copy = false) const;
  Tensor to(caffe2::TypeMeta type, bool non_blocking = false, bool copy = false) const;
  Tensor to(Device device, bool non_blocking = false) const;
  Tensor to(DeviceType device, bool non_blocking = false) const;
  Tensor to(Device device, ScalarType type, bool non_blocking = false, bool copy = false) const;
  Tensor to(const TensorOptions& options, bool non_blocking = false, bool copy = false) const;
  Tensor to(const Tensor& other) const;
  Tensor toType(ScalarType type) const;
  ScalarType type() const;
  Tensor type_as(const Tensor& other) const;
  Tensor cuda() const;
  Tensor cpu() const;
  Tensor clone() const;
  Tensor clone(MemoryFormat format) const;
  Tensor alias() const;
  Tensor view(IntArrayRef sizes) const;
  Tensor view(ScalarType type) const;
  Tensor view_as(const Tensor& other) const;
  Tensor reshape(IntArrayRef sizes) const;
  Tensor reshape_as(const Tensor& other) const;
  Tensor permute(IntArrayRef dims) const;
  Tensor transpose(int64_t a, int64_t b) const;
  Tensor t() const;
  Tensor mT() const;
  Tensor flatten(int64_t start = 0, int64_t end = -1) const;
  Tensor squeeze() const;
  Tensor squeeze(int64_t dim) const;
  Tensor unsqueeze(int64_t dim) const;
  Tensor expand(IntArrayRef sizes, bool implicit = false) const;
  Tensor expand_as(const Tensor& other) const;
  Tensor repeat(IntArrayRef repeats) const;
  Tensor slice(int64_t dim = 0, std::optional<int64_t> start = std::nullopt, std::optional<int64_t> end = std::nullopt,
               int64_t step = 1) const;
  Tensor select(int64_t dim, int64_t index) const;
  Tensor narrow(int64_t dim, int64_t start, int64_t length) const;
  Tensor index_select(int64_t dim, const Tensor& index) const;
  std::vector<Tensor> split(int64_t size, int64_t dim = 0) const;
  std::vector<Tensor> chunk(int64_t chunks, int64_t dim = 0) const;
  std::vector<Tensor> unbind(int64_t dim = 0) const;
  Tensor as_strided(IntArrayRef sizes, IntArrayRef strides) const;
  Tensor operator[](int64_t index) const;
  Tensor new_empty(IntArrayRef sizes, TensorOptions options = {}) const;
  Tensor new_zeros(IntArrayRef sizes, TensorOptions options = {}) const;
  Tensor new_ones(IntArrayRef sizes, TensorOptions options = {}) const;
  Tensor new_full(IntArrayRef sizes, const Scalar& value, TensorOptions options = {}) const;

  Tensor& fill_(const Scalar& value) const;
  Tensor& zero_() const;
  Tensor& copy_(const Tensor& source, bool non_blocking = false) const;
  Tensor& resize_(IntArrayRef sizes) const;
  void set_data(const Tensor& other) const;
  void record_stream(const class Stream& stream) const;

#define LIGHT_UNARY(name)  \
  Tensor name() const;     \
  Tensor& name##_() const;
#define LIGHT_BINARY(name)                    \
  Tensor name(const Tensor& other) const;     \
  Tensor name(const Scalar& other) const;     \
  Tensor& name##_(const Tensor& other) const; \
  Tensor& name##_(const Scalar& other) const;
#define LIGHT_REDUCTION(name) \
  Tensor name() const;        \
  Tensor name(int64_t dim, bool keepdim = false) const;
#define LIGHT_UNARIES(F) \
  F(abs) F(neg) F(exp) F(log) F(log2) F(log1p) F(sqrt) F(rsqrt) F(sin) F(cos) F(tanh) F(sigmoid) F(relu) F(floor) F(ceil)
#define LIGHT_BINARIES(F) F(sub) F(mul) F(div) F(pow) F(eq) F(ne) F(lt) F(le) F(gt) F(ge)
#define LIGHT_REDUCTIONS(F) F(sum) F(mean) F(prod) F(amax) F(amin) F(max) F(min) F(argmax) F(argmin) F(all) F(any)
  LIGHT_UNARIES(LIGHT_UNARY)
  LIGHT_BINARIES(LIGHT_BINARY)
  LIGHT_REDUCTIONS(LIGHT_REDUCTION)
  Tensor sum(IntArrayRef dims, bool keepdim = false) const;
  Tensor mean(IntArrayRef dims, bool keepdim = false) const;
  Tensor add(const Tensor& other, const Scalar& alpha = 1) const;
  Tensor add(const Scalar& other, const Scalar& alpha = 1) const;
  Tensor& add_(const Tensor& other, const Scalar& alpha = 1) const;
  Tensor& add_(const Scalar& other, const Scalar& alpha = 1) const;
  Tensor clamp(const std::optional<Scalar>& low, const std::optional<Scalar>& high = std::nullopt) const;
  Tensor masked_fill(const Tensor& mask, const Scalar& value) const;
  Tensor& masked_fill_(const Tensor& mask, const Scalar& value) const;
  Tensor matmul(const Tensor& other) const;
  Tensor mm(const Tensor& other) const;
  Tensor bmm(const Tensor& other) const;
  Tensor norm() const;
  Tensor var(int64_t dim, bool unbiased = true, bool keepdim = false) const;
  Tensor cumsum(int64_t dim) const;
  Tensor softmax(int64_t dim) const;
  bool equal(const Tensor& other) const;
  Tensor operator-() const;
  Tensor& operator+=(const Tensor& other);
  Tensor& operator-=(const Tensor& other);
  Tensor& operator*=(const Tensor& other);
  Tensor& operator/=(const Tensor& other);
  Tensor& operator+=(const Scalar& other);
  Tensor& operator*=(const Scalar& other);
  Tensor& operator/=(const Scalar& other);
};
using TensorList = ArrayRef<Tensor>;

#define LIGHT_OPERATOR(symbol)                                  \
  Tensor operator symbol(const Tensor& a, const Tensor& b);     \
  Tensor operator symbol(const Tensor& a, const Scalar& b);     \
  Tensor operator symbol(const Scalar& a, const Tensor& b);
LIGHT_OPERATOR(+)
LIGHT_OPERATOR(-)
LIGHT_OPERATOR(*)
LIGHT_OPERATOR(/)
LIGHT_OPERATOR(<)
LIGHT_OPERATOR(>)
LIGHT_OPERATOR(==)

#define LIGHT_FREE_UNARY(name) Tensor name(const Tensor& x);
#define LIGHT_FREE_BINARY(name)                      \
  Tensor name(const Tensor& x, const Tensor& other); \
  Tensor name(const Tensor& x, const Scalar& other);
#define LIGHT_FREE_REDUCTION(name) \
  Tensor name(const Tensor& x);    \
  Tensor name(const Tensor& x, int64_t dim, bool keepdim = false);
LIGHT_UNARIES(LIGHT_FREE_UNARY)
LIGHT_BINARIES(LIGHT_FREE_BINARY)
LIGHT_REDUCTIONS(LIGHT_FREE_REDUCTION)
Tensor sum(const Tensor& x, IntArrayRef dims, bool keepdim = false);
Tensor add(const Tensor& x, const Tensor& other, const Scalar& alpha = 1);
Tensor maximum(const Tensor& x, const Tensor& other);
Tensor minimum(const Tensor& x, const Tensor& other);
Tensor where(const Tensor& condition, const Tensor& x, const Tensor& other);
Tensor matmul(const Tensor& x, const Tensor& other);
Tensor mm(const Tensor& x, const Tensor& other);
Tensor bmm(const Tensor& x, const Tensor& other);
Tensor softmax(const Tensor& x, int64_t dim);
Tensor cat(TensorList tensors, int64_t dim = 0);
Tensor stack(TensorList tensors, int64_t dim = 0);
Tensor transpose(const Tensor& x, int64_t a, int64_t b);
Tensor flatten(const Tensor& x, int64_t start = 0, int64_t end = -1);
Tensor clone(const Tensor& x);

#define LIGHT_LIKE(name) \
  Tensor name(const Tensor& x, TensorOptions options = {}, std::optional<MemoryFormat> format = std::nullopt);
#define LIGHT_FACTORY(name) Tensor name(IntArrayRef sizes, TensorOptions options = {});
LIGHT_LIKE(empty_like)
LIGHT_LIKE(zeros_like)
LIGHT_LIKE(ones_like)
LIGHT_LIKE(rand_like)
LIGHT_LIKE(randn_like)
LIGHT_FACTORY(zeros)
LIGHT_FACTORY(ones)
LIGHT_FACTORY(rand)
LIGHT_FACTORY(randn)
Tensor empty(IntArrayRef sizes, TensorOptions options = {}, std::optional<MemoryFormat> format = std::nullopt);
Tensor empty_strided(IntArrayRef sizes, IntArrayRef strides, TensorOptions options = {});
Tensor full(IntArrayRef sizes, const Scalar& value, TensorOptions options = {});
Tensor full_like(const Tensor& x, const Scalar& value, TensorOptions options = {});
Tensor arange(const Scalar& end, TensorOptions options = {});
Tensor arange(const Scalar& start, const Scalar& end, TensorOptions options = {});
Tensor arange(const Scalar& start, const Scalar& end, const Scalar& step, TensorOptions options = {});
Tensor scalar_tensor(const Scalar& value, TensorOptions options = {});
Tensor tensor(ArrayRef<float> values, TensorOptions options = {});
Tensor tensor(ArrayRef<int64_t> values, TensorOptions options = {});
Tensor tensor(double value, TensorOptions options = {});
Tensor from_blob(void* data, IntArrayRef sizes, TensorOptions options = {});

TensorOptions dtype(ScalarType type);
TensorOptions dtype(caffe2::TypeMeta type);
TensorOptions device(Device device);
TensorOptions device(DeviceType device);
TensorOptions requires_grad(bool required = true);
ScalarType promote_types(ScalarType a, ScalarType b);
template <typename T, typename U>
C10_HOST_DEVICE constexpr T ceil_div(T a, U b) { return (a + b - 1) / b; }

template <typename T, bool is_cuda>
struct AccumulateType { using type = T; };
template <bool is_cuda>
struct AccumulateType<Half, is_cuda> { using type = float; };
template <bool is_cuda>
struct AccumulateType<BFloat16, is_cuda> { using type = float; };
template <bool is_cuda>
struct AccumulateType<float, is_cuda> { using type = std::conditional_t<is_cuda, float, double>; };
template <typename T, bool is_cuda>
using acc_type = typename AccumulateType<T, is_cuda>::type;
template <typename T>
struct OpMathType { using type = T; };
template <>
struct OpMathType<Half> { using type = float; };
template <>
struct OpMathType<BFloat16> { using type = float; };
template <typename T>
using opmath_type = typename OpMathType<T>::type;

struct NoGradGuard {};
struct AutoGradMode { explicit AutoGradMode(bool enabled); };
}  // namespace at

namespace torch {
using namespace at;
using Tensor = at::Tensor;
using Dtype = at::ScalarType;
using Device = at::Device;
using TensorOptions = at::TensorOptions;
namespace headeronly = c10;
template <typename Function>
Function wrap_pybind_function(Function function);
}  // namespace torch

#include "light_dispatch.h"
