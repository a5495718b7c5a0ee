// Declarations of the part of PyTorch's C++ interface that kernels in one file use: enough for a compiler to check host
// code, with nothing behind it. What is called from device code has a body; everything else is declared and never linked.
#pragma once

#include <cassert>
#include <cfloat>
#include <climits>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#ifdef __CUDACC__
#define C10_HOST_DEVICE __host__ __device__
#define C10_DEVICE __device__
#define C10_HOST __host__
#else
#define C10_HOST_DEVICE
#define C10_DEVICE
#define C10_HOST
#endif
#define C10_ALWAYS_INLINE inline __attribute__((always_inline))
#define C10_RESTRICT __restrict__
#define C10_LAUNCH_BOUNDS_0
#define C10_LAUNCH_BOUNDS_1(most) __launch_bounds__(most)
#define C10_LAUNCH_BOUNDS_2(most, blocks) __launch_bounds__(most, blocks)
#define C10_UNUSED __attribute__((unused))
#define C10_UNROLL _Pragma("unroll")
#define C10_LIKELY(condition) (condition)
#define C10_UNLIKELY(condition) (condition)
#define C10_WARP_SIZE 32
#define TORCH_API
#define C10_API
#define AT_DISABLE_COPY_AND_ASSIGN(type) \
  type(const type&) = delete;            \
  type& operator=(const type&) = delete

#define LIGHT_CHECK(condition, ...)                     \
  do {                                                  \
    if (!(condition)) ::c10::light::refuse(__VA_ARGS__); \
  } while (false)
#define TORCH_CHECK(condition, ...) LIGHT_CHECK(condition, ##__VA_ARGS__)
#define TORCH_INTERNAL_ASSERT(condition, ...) LIGHT_CHECK(condition, ##__VA_ARGS__)
#define TORCH_INTERNAL_ASSERT_DEBUG_ONLY(condition, ...) LIGHT_CHECK(condition, ##__VA_ARGS__)
#define TORCH_CHECK_VALUE(condition, ...) LIGHT_CHECK(condition, ##__VA_ARGS__)
#define TORCH_CHECK_TYPE(condition, ...) LIGHT_CHECK(condition, ##__VA_ARGS__)
#define TORCH_CHECK_INDEX(condition, ...) LIGHT_CHECK(condition, ##__VA_ARGS__)
#define TORCH_CHECK_NOT_IMPLEMENTED(condition, ...) LIGHT_CHECK(condition, ##__VA_ARGS__)
#define TORCH_CHECK_EQ(a, b) LIGHT_CHECK((a) == (b))
#define TORCH_CHECK_NE(a, b) LIGHT_CHECK((a) != (b))
#define TORCH_CHECK_LT(a, b) LIGHT_CHECK((a) < (b))
#define TORCH_CHECK_LE(a, b) LIGHT_CHECK((a) <= (b))
#define TORCH_CHECK_GT(a, b) LIGHT_CHECK((a) > (b))
#define TORCH_CHECK_GE(a, b) LIGHT_CHECK((a) >= (b))
#define TORCH_WARN(...) ::c10::light::refuse(__VA_ARGS__)
#define TORCH_WARN_ONCE(...) ::c10::light::refuse(__VA_ARGS__)
#define AT_ASSERT(condition) LIGHT_CHECK(condition)
#define AT_ASSERTM(condition, ...) LIGHT_CHECK(condition, ##__VA_ARGS__)
#define AT_CHECK(condition, ...) LIGHT_CHECK(condition, ##__VA_ARGS__)
#define AT_ERROR(...) ::c10::light::refuse(__VA_ARGS__)
#define CUDA_KERNEL_ASSERT(condition) assert(condition)

namespace c10 {

namespace light {
template <typename... Parts>
void refuse(const Parts&... parts);
}  // namespace light

using std::in_place;
using std::make_optional;
using std::nullopt;
using std::nullopt_t;
using std::optional;

// Half and BFloat16: two bytes that convert to float, with the operators that PyTorch's own types have.
#define LIGHT_SMALL_FLOAT(Type)                                                              \
  struct alignas(2) Type {                                                                   \
    unsigned short x;                                                                        \
    struct from_bits_t {};                                                                   \
    Type() = default;                                                                        \
    C10_HOST_DEVICE constexpr Type(unsigned short bits, from_bits_t) : x(bits) {}            \
    C10_HOST_DEVICE static constexpr from_bits_t from_bits() { return from_bits_t(); }       \
    C10_HOST_DEVICE inline Type(float value);                                                \
    C10_HOST_DEVICE inline operator float() const;                                           \
    LIGHT_NATIVE_##Type                                                                      \
  };                                                                                         \
  C10_HOST_DEVICE inline Type operator+(Type a, Type b) { return float(a) + float(b); }      \
  C10_HOST_DEVICE inline Type operator-(Type a, Type b) { return float(a) - float(b); }      \
  C10_HOST_DEVICE inline Type operator*(Type a, Type b) { return float(a) * float(b); }      \
  C10_HOST_DEVICE inline Type operator/(Type a, Type b) { return float(a) / float(b); }      \
  C10_HOST_DEVICE inline Type operator-(Type a) { return -float(a); }                        \
  C10_HOST_DEVICE inline Type& operator+=(Type& a, Type b) { return a = a + b; }             \
  C10_HOST_DEVICE inline Type& operator-=(Type& a, Type b) { return a = a - b; }             \
  C10_HOST_DEVICE inline Type& operator*=(Type& a, Type b) { return a = a * b; }             \
  C10_HOST_DEVICE inline Type& operator/=(Type& a, Type b) { return a = a / b; }             \
  LIGHT_MIXED(Type, float, float)                                                            \
  LIGHT_MIXED(Type, double, double)                                                          \
  LIGHT_MIXED(Type, int, Type)                                                               \
  LIGHT_MIXED(Type, int64_t, Type)
#define LIGHT_MIXED(Type, Other, Result)                                                                       \
  C10_HOST_DEVICE inline Result operator+(Type a, Other b) { return Result(float(a)) + Result(float(b)); }      \
  C10_HOST_DEVICE inline Result operator-(Type a, Other b) { return Result(float(a)) - Result(float(b)); }      \
  C10_HOST_DEVICE inline Result operator*(Type a, Other b) { return Result(float(a)) * Result(float(b)); }      \
  C10_HOST_DEVICE inline Result operator/(Type a, Other b) { return Result(float(a)) / Result(float(b)); }      \
  C10_HOST_DEVICE inline Result operator+(Other a, Type b) { return Result(float(a)) + Result(float(b)); }      \
  C10_HOST_DEVICE inline Result operator-(Other a, Type b) { return Result(float(a)) - Result(float(b)); }      \
  C10_HOST_DEVICE inline Result operator*(Other a, Type b) { return Result(float(a)) * Result(float(b)); }      \
  C10_HOST_DEVICE inline Result operator/(Other a, Type b) { return Result(float(a)) / Result(float(b)); }
#if defined(__CUDACC__) && defined(LIGHT_HALF)
}  // namespace c10
#include <cuda_fp16.h>
namespace c10 {
#define LIGHT_NATIVE_Half                                                         \
  C10_HOST_DEVICE Half(const __half& value) : x(__half_raw(value).x) {}           \
  C10_HOST_DEVICE operator __half() const { __half_raw raw; raw.x = x; return raw; }
#else
#define LIGHT_NATIVE_Half
#endif
#if defined(__CUDACC__) && defined(LIGHT_BFLOAT16)
}  // namespace c10
#include <cuda_bf16.h>
namespace c10 {
#define LIGHT_NATIVE_BFloat16                                                                \
  C10_HOST_DEVICE BFloat16(const __nv_bfloat16& value) : x(__nv_bfloat16_raw(value).x) {}    \
  C10_HOST_DEVICE operator __nv_bfloat16() const { __nv_bfloat16_raw raw; raw.x = x; return raw; }
#else
#define LIGHT_NATIVE_BFloat16
#endif
LIGHT_SMALL_FLOAT(Half)
LIGHT_SMALL_FLOAT(BFloat16)

C10_HOST_DEVICE inline Half::Half(float value) : x(0) {
#ifdef __CUDA_ARCH__
  asm("{ cvt.rn.f16.f32 %0, %1; }" : "=h"(x) : "f"(value));
#else
  (void)value;
#endif
}
C10_HOST_DEVICE inline Half::operator float() const {
  float value = 0;
#ifdef __CUDA_ARCH__
  asm("{ cvt.f32.f16 %0, %1; }" : "=f"(value) : "h"(x));
#endif
  return value;
}
C10_HOST_DEVICE inline BFloat16::BFloat16(float value) : x(0) {
#ifdef __CUDA_ARCH__
  asm("{ cvt.rn.bf16.f32 %0, %1; }" : "=h"(x) : "f"(value));
#else
  (void)value;
#endif
}
C10_HOST_DEVICE inline BFloat16::operator float() const {
  float value = 0;
#ifdef __CUDA_ARCH__
  value = __uint_as_float(static_cast<unsigned>(x) << 16);
#endif
  return value;
}

template <typename T>
struct complex {
  T real_, imag_;
  C10_HOST_DEVICE constexpr complex(T real = T(), T imag = T()) : real_(real), imag_(imag) {}
  C10_HOST_DEVICE constexpr T real() const { return real_; }
  C10_HOST_DEVICE constexpr T imag() const { return imag_; }
};

enum class ScalarType : int8_t {
  Byte, Char, Short, Int, Long, Half, Float, Double, ComplexHalf, ComplexFloat, ComplexDouble, Bool, BFloat16,
  Float8_e5m2, Float8_e4m3fn, UInt16, UInt32, UInt64, Undefined, NumOptions
};
const char* toString(ScalarType type);
size_t elementSize(ScalarType type);
bool isFloatingType(ScalarType type);
bool isIntegralType(ScalarType type, bool includeBool);

constexpr ScalarType kByte = ScalarType::Byte, kChar = ScalarType::Char, kShort = ScalarType::Short,
                     kInt = ScalarType::Int, kLong = ScalarType::Long, kHalf = ScalarType::Half,
                     kFloat = ScalarType::Float, kDouble = ScalarType::Double, kBool = ScalarType::Bool,
                     kBFloat16 = ScalarType::BFloat16, kUInt8 = kByte, kInt8 = kChar, kInt16 = kShort, kInt32 = kInt,
                     kInt64 = kLong, kFloat16 = kHalf, kFloat32 = kFloat, kFloat64 = kDouble,
                     kComplexFloat = ScalarType::ComplexFloat, kComplexDouble = ScalarType::ComplexDouble,
                     kFloat8_e5m2 = ScalarType::Float8_e5m2, kFloat8_e4m3fn = ScalarType::Float8_e4m3fn,
                     kUInt16 = ScalarType::UInt16, kUInt32 = ScalarType::UInt32, kUInt64 = ScalarType::UInt64;

template <typename T>
struct CppTypeToScalarType;
namespace impl {
template <ScalarType type>
struct ScalarTypeToCPPType;
template <ScalarType type>
using ScalarTypeToCPPTypeT = typename ScalarTypeToCPPType<type>::type;
}  // namespace impl
#define LIGHT_SCALAR(Cpp, Name)                                                          \
  template <>                                                                            \
  struct CppTypeToScalarType<Cpp> { static constexpr ScalarType value = ScalarType::Name; }; \
  template <>                                                                            \
  struct impl::ScalarTypeToCPPType<ScalarType::Name> { using type = Cpp; };
LIGHT_SCALAR(uint8_t, Byte)
LIGHT_SCALAR(int8_t, Char)
LIGHT_SCALAR(int16_t, Short)
LIGHT_SCALAR(int, Int)
LIGHT_SCALAR(int64_t, Long)
LIGHT_SCALAR(c10::Half, Half)
LIGHT_SCALAR(float, Float)
LIGHT_SCALAR(double, Double)
LIGHT_SCALAR(bool, Bool)
LIGHT_SCALAR(c10::BFloat16, BFloat16)
LIGHT_SCALAR(c10::complex<float>, ComplexFloat)
LIGHT_SCALAR(c10::complex<double>, ComplexDouble)

using DeviceIndex = int8_t;
enum class DeviceType : int8_t { CPU, CUDA, HIP, Meta };
constexpr DeviceType kCPU = DeviceType::CPU, kCUDA = DeviceType::CUDA, kMeta = DeviceType::Meta;
struct Device {
  Device(DeviceType type, DeviceIndex index = -1);
  Device(const char* text);
  DeviceType type() const;
  DeviceIndex index() const;
  bool is_cuda() const;
  bool is_cpu() const;
  bool has_index() const;
  bool operator==(const Device& other) const;
  bool operator!=(const Device& other) const;
};
enum class Layout : int8_t { Strided, Sparse };
constexpr Layout kStrided = Layout::Strided, kSparse = Layout::Sparse;
enum class MemoryFormat : int8_t { Contiguous, Preserve, ChannelsLast, ChannelsLast3d };

template <typename T>
class ArrayRef {
 public:
  ArrayRef();
  ArrayRef(const T& one);
  ArrayRef(const T* data, size_t length);
  ArrayRef(const std::vector<T>& values);
  ArrayRef(const std::initializer_list<T>& values);
  template <size_t length>
  ArrayRef(const T (&values)[length]);
  const T* begin() const;
  const T* end() const;
  const T* data() const;
  size_t size() const;
  bool empty() const;
  const T& front() const;
  const T& back() const;
  const T& operator[](size_t index) const;
  const T& at(size_t index) const;
  ArrayRef slice(size_t start, size_t length) const;
  ArrayRef slice(size_t start) const;
  bool equals(ArrayRef other) const;
  std::vector<T> vec() const;
};
template <typename T>
bool operator==(const ArrayRef<T>& a, const ArrayRef<T>& b);
template <typename T>
bool operator!=(const ArrayRef<T>& a, const ArrayRef<T>& b);
using IntArrayRef = ArrayRef<int64_t>;

class Scalar {
 public:
  Scalar();
  Scalar(float value);
  Scalar(double value);
  Scalar(int value);
  Scalar(int64_t value);
  Scalar(long long value);
  Scalar(unsigned value);
  Scalar(bool value);
  Scalar(Half value);
  Scalar(BFloat16 value);
  template <typename T>
  T to() const;
  double toDouble() const;
  float toFloat() const;
  int64_t toLong() const;
  int toInt() const;
  bool toBool() const;
  bool isFloatingPoint() const;
};

struct Storage {
  void* data() const;
  size_t nbytes() const;
};
}  // namespace c10

namespace caffe2 {
struct TypeMeta {
  TypeMeta(c10::ScalarType type);
  size_t itemsize() const;
  c10::ScalarType toScalarType() const;
  template <typename T>
  static TypeMeta Make();
};
bool operator==(const TypeMeta& a, const TypeMeta& b);
bool operator!=(const TypeMeta& a, const TypeMeta& b);
c10::ScalarType typeMetaToScalarType(TypeMeta type);
}  // namespace caffe2

namespace c10 {
using caffe2::TypeMeta;
using caffe2::typeMetaToScalarType;
struct TensorOptions {
  TensorOptions();
  TensorOptions(ScalarType type);
  TensorOptions(TypeMeta type);
  TensorOptions(Device device);
  TensorOptions(DeviceType device);
  TensorOptions dtype(ScalarType type) const;
  TensorOptions dtype(TypeMeta type) const;
  TensorOptions device(Device device) const;
  TensorOptions device(DeviceType device, DeviceIndex index = 0) const;
  TensorOptions device_index(DeviceIndex index) const;
  TensorOptions layout(Layout layout) const;
  TensorOptions memory_format(MemoryFormat format) const;
  TensorOptions requires_grad(bool required = true) const;
  TensorOptions pinned_memory(bool pinned = true) const;
  TypeMeta dtype() const;
  Device device() const;
};
}  // namespace c10

#include "light_tensor.h"
