// The AT_DISPATCH family: a switch over the dtype, with `scalar_t` in each case, as in PyTorch.
#pragma once

#define AT_PRIVATE_CASE_TYPE_USING_HINT(type_, hint, ...)          \
  case type_: {                                                    \
    using hint = c10::impl::ScalarTypeToCPPTypeT<type_>;           \
    return __VA_ARGS__();                                          \
  }
#define AT_DISPATCH_CASE(type_, ...) AT_PRIVATE_CASE_TYPE_USING_HINT(type_, scalar_t, __VA_ARGS__)
#define AT_DISPATCH_SWITCH(TYPE, NAME, ...)                        \
  [&] {                                                            \
    const at::ScalarType light_type = ::c10::light::scalar_type(TYPE); \
    switch (light_type) {                                          \
      __VA_ARGS__                                                  \
      default: ::c10::light::refuse(NAME);                         \
    }                                                              \
    ::c10::light::unreachable();                                   \
  }()
namespace c10::light {
inline ScalarType scalar_type(ScalarType type) { return type; }
ScalarType scalar_type(const caffe2::TypeMeta& type);
[[noreturn]] void unreachable();
}  // namespace c10::light

#define LIGHT_CASES_FLOATING(...)                     \
  AT_DISPATCH_CASE(at::ScalarType::Double, __VA_ARGS__) \
  AT_DISPATCH_CASE(at::ScalarType::Float, __VA_ARGS__)
#define LIGHT_CASES_REDUCED(...)                    \
  AT_DISPATCH_CASE(at::ScalarType::Half, __VA_ARGS__) \
  AT_DISPATCH_CASE(at::ScalarType::BFloat16, __VA_ARGS__)
#define LIGHT_CASES_COMPLEX(...)                            \
  AT_DISPATCH_CASE(at::ScalarType::ComplexDouble, __VA_ARGS__) \
  AT_DISPATCH_CASE(at::ScalarType::ComplexFloat, __VA_ARGS__)
#define LIGHT_CASES_INTEGRAL(...)                   \
  AT_DISPATCH_CASE(at::ScalarType::Byte, __VA_ARGS__)  \
  AT_DISPATCH_CASE(at::ScalarType::Char, __VA_ARGS__)  \
  AT_DISPATCH_CASE(at::ScalarType::Int, __VA_ARGS__)   \
  AT_DISPATCH_CASE(at::ScalarType::Long, __VA_ARGS__)  \
  AT_DISPATCH_CASE(at::ScalarType::Short, __VA_ARGS__)
#define LIGHT_CASES_ALL(...) LIGHT_CASES_FLOATING(__VA_ARGS__) LIGHT_CASES_INTEGRAL(__VA_ARGS__)
#define LIGHT_CASES_FLOATING_COMPLEX(...) LIGHT_CASES_FLOATING(__VA_ARGS__) LIGHT_CASES_COMPLEX(__VA_ARGS__)
#define LIGHT_CASES_ALL_COMPLEX(...) LIGHT_CASES_ALL(__VA_ARGS__) LIGHT_CASES_COMPLEX(__VA_ARGS__)

// PyTorch names these CASE macros too, for AT_DISPATCH_SWITCH.
#define AT_DISPATCH_CASE_FLOATING_TYPES(...) LIGHT_CASES_FLOATING(__VA_ARGS__)
#define AT_DISPATCH_CASE_FLOATING_TYPES_AND_HALF(...) \
  LIGHT_CASES_FLOATING(__VA_ARGS__) AT_DISPATCH_CASE(at::ScalarType::Half, __VA_ARGS__)
#define AT_DISPATCH_CASE_REDUCED_FLOATING_TYPES(...) LIGHT_CASES_REDUCED(__VA_ARGS__)
#define AT_DISPATCH_CASE_INTEGRAL_TYPES(...) LIGHT_CASES_INTEGRAL(__VA_ARGS__)
#define AT_DISPATCH_CASE_ALL_TYPES(...) LIGHT_CASES_ALL(__VA_ARGS__)

#define LIGHT_AND1(CASES, A, ...) CASES(__VA_ARGS__) AT_DISPATCH_CASE(A, __VA_ARGS__)
#define LIGHT_AND2(CASES, A, B, ...) LIGHT_AND1(CASES, A, __VA_ARGS__) AT_DISPATCH_CASE(B, __VA_ARGS__)
#define LIGHT_AND3(CASES, A, B, C, ...) LIGHT_AND2(CASES, A, B, __VA_ARGS__) AT_DISPATCH_CASE(C, __VA_ARGS__)
#define LIGHT_AND4(CASES, A, B, C, D, ...) LIGHT_AND3(CASES, A, B, C, __VA_ARGS__) AT_DISPATCH_CASE(D, __VA_ARGS__)

#define AT_DISPATCH_FLOATING_TYPES(TYPE, NAME, ...) AT_DISPATCH_SWITCH(TYPE, NAME, LIGHT_CASES_FLOATING(__VA_ARGS__))
#define AT_DISPATCH_FLOATING_TYPES_AND_HALF(TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, LIGHT_AND1(LIGHT_CASES_FLOATING, at::ScalarType::Half, __VA_ARGS__))
#define AT_DISPATCH_REDUCED_FLOATING_TYPES(TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, LIGHT_CASES_REDUCED(__VA_ARGS__))
#define AT_DISPATCH_FLOATING_TYPES_AND(A, TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, LIGHT_AND1(LIGHT_CASES_FLOATING, A, __VA_ARGS__))
#define AT_DISPATCH_FLOATING_TYPES_AND2(A, B, TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, LIGHT_AND2(LIGHT_CASES_FLOATING, A, B, __VA_ARGS__))
#define AT_DISPATCH_FLOATING_TYPES_AND3(A, B, C, TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, LIGHT_AND3(LIGHT_CASES_FLOATING, A, B, C, __VA_ARGS__))
#define AT_DISPATCH_COMPLEX_TYPES(TYPE, NAME, ...) AT_DISPATCH_SWITCH(TYPE, NAME, LIGHT_CASES_COMPLEX(__VA_ARGS__))
#define AT_DISPATCH_FLOATING_AND_COMPLEX_TYPES(TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, LIGHT_CASES_FLOATING_COMPLEX(__VA_ARGS__))
#define AT_DISPATCH_INTEGRAL_TYPES(TYPE, NAME, ...) AT_DISPATCH_SWITCH(TYPE, NAME, LIGHT_CASES_INTEGRAL(__VA_ARGS__))
#define AT_DISPATCH_INTEGRAL_TYPES_AND(A, TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, LIGHT_AND1(LIGHT_CASES_INTEGRAL, A, __VA_ARGS__))
#define AT_DISPATCH_ALL_TYPES(TYPE, NAME, ...) AT_DISPATCH_SWITCH(TYPE, NAME, LIGHT_CASES_ALL(__VA_ARGS__))
#define AT_DISPATCH_ALL_TYPES_AND(A, TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, LIGHT_AND1(LIGHT_CASES_ALL, A, __VA_ARGS__))
#define AT_DISPATCH_ALL_TYPES_AND2(A, B, TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, LIGHT_AND2(LIGHT_CASES_ALL, A, B, __VA_ARGS__))
#define AT_DISPATCH_ALL_TYPES_AND3(A, B, C, TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, LIGHT_AND3(LIGHT_CASES_ALL, A, B, C, __VA_ARGS__))
#define AT_DISPATCH_ALL_TYPES_AND4(A, B, C, D, TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, LIGHT_AND4(LIGHT_CASES_ALL, A, B, C, D, __VA_ARGS__))
#define AT_DISPATCH_ALL_TYPES_AND_HALF(TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, LIGHT_AND1(LIGHT_CASES_ALL, at::ScalarType::Half, __VA_ARGS__))
#define AT_DISPATCH_ALL_TYPES_AND_COMPLEX(TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, LIGHT_CASES_ALL_COMPLEX(__VA_ARGS__))
#define AT_DISPATCH_INDEX_TYPES(TYPE, NAME, ...)                                              \
  AT_DISPATCH_SWITCH(TYPE, NAME,                                                              \
                     AT_PRIVATE_CASE_TYPE_USING_HINT(at::ScalarType::Int, index_t, __VA_ARGS__) \
                         AT_PRIVATE_CASE_TYPE_USING_HINT(at::ScalarType::Long, index_t, __VA_ARGS__))
