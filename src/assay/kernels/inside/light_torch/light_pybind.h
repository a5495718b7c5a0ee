// The part of pybind11 that binds functions, declared.
#pragma once

#include "light_torch.h"

namespace pybind11 {
struct none {};
class object {
 public:
  template <typename T>
  T cast() const;
};
struct arg {
  explicit arg(const char* name);
  template <typename T>
  arg operator=(T&& value) const;
  arg& noconvert(bool flag = true);
  arg& none(bool flag = true);
};
struct gil_scoped_release { gil_scoped_release(); };
struct gil_scoped_acquire { gil_scoped_acquire(); };
template <typename Guard>
struct call_guard {};
class module_ : public object {
 public:
  template <typename Function, typename... Extra>
  module_& def(const char* name, Function&& function, const Extra&... extra);
  template <typename T>
  void attr_set(const char* name, T&& value);
  const char*& doc();
};
using module = module_;
inline namespace literals {
arg operator""_a(const char* name, size_t length);
}
}  // namespace pybind11
namespace py = pybind11;

#define PYBIND11_MODULE(name, variable) static void light_bind_module(::pybind11::module_& variable)

namespace torch {
class Library {
 public:
  template <typename Function>
  Library& def(const char* name, Function&& function);
  Library& def(const char* schema);
  template <typename Function>
  Library& impl(const char* name, Function&& function);
};
}  // namespace torch
#define TORCH_LIBRARY(name, variable) static void light_library_##name(::torch::Library& variable)
#define TORCH_LIBRARY_FRAGMENT(name, variable) static void light_fragment_##name(::torch::Library& variable)
#define TORCH_LIBRARY_IMPL(name, key, variable) static void light_impl_##name##_##key(::torch::Library& variable)
