#pragma once
// Finding the tensors in a forward's arguments and results.
//
// Understood: tensors, optional, pair, tuple, array, vector, map and
// unordered_map of them in any nesting, and values that hold none (numbers,
// strings, enums). For a struct of your own write, in its namespace:
//
//   template <typename F> void fsdp_for_each_tensor(Output& o, F&& f) {
//     f(o.logits);
//     fsdp::for_each_tensor(o.hidden, f);
//   }

#include <ATen/core/Tensor.h>

#include <array>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

namespace fsdp {

/// True if for_each_tensor knows what T holds.
template <typename T>
struct KnowsTensors;

namespace detail {

template <typename T, typename F>
concept HasOwnVisit =
    requires(T& value, F&& f) { fsdp_for_each_tensor(value, f); };

struct IgnoreTensor {
  void operator()(at::Tensor&) const {}
};

template <typename T>
struct Knows
    : std::bool_constant<
          std::is_arithmetic_v<T> || std::is_enum_v<T> ||
          std::is_same_v<T, std::nullptr_t> ||
          std::is_same_v<T, std::nullopt_t> || std::is_same_v<T, std::string> ||
          std::is_same_v<T, at::Tensor> || HasOwnVisit<T, IgnoreTensor&>> {};
template <typename T>
struct Knows<std::optional<T>> : KnowsTensors<T> {};
template <typename T, typename A>
struct Knows<std::vector<T, A>> : KnowsTensors<T> {};
template <typename T, std::size_t N>
struct Knows<std::array<T, N>> : KnowsTensors<T> {};
template <typename A, typename B>
struct Knows<std::pair<A, B>>
    : std::bool_constant<KnowsTensors<A>::value && KnowsTensors<B>::value> {};
template <typename... T>
struct Knows<std::tuple<T...>>
    : std::bool_constant<(KnowsTensors<T>::value && ...)> {};
template <typename K, typename T, typename C, typename A>
struct Knows<std::map<K, T, C, A>> : KnowsTensors<T> {};
template <typename K, typename T, typename H, typename E, typename A>
struct Knows<std::unordered_map<K, T, H, E, A>> : KnowsTensors<T> {};

} // namespace detail

template <typename T>
struct KnowsTensors : detail::Knows<std::remove_cvref_t<T>> {};

template <typename T, typename F>
void for_each_tensor(T& value, F&& f);

namespace detail {

template <typename F>
void visit(at::Tensor& value, F& f) {
  f(value);
}
template <typename T, typename F>
void visit(std::optional<T>& value, F& f) {
  if (value) {
    for_each_tensor(*value, f);
  }
}
template <typename T, typename A, typename F>
void visit(std::vector<T, A>& value, F& f) {
  if constexpr (!std::is_same_v<T, bool>) {
    for (auto& element : value) {
      for_each_tensor(element, f);
    }
  }
}
template <typename T, std::size_t N, typename F>
void visit(std::array<T, N>& value, F& f) {
  for (auto& element : value) {
    for_each_tensor(element, f);
  }
}
template <typename A, typename B, typename F>
void visit(std::pair<A, B>& value, F& f) {
  for_each_tensor(value.first, f);
  for_each_tensor(value.second, f);
}
template <typename... T, typename F>
void visit(std::tuple<T...>& value, F& f) {
  std::apply(
      [&f](auto&... element) { (for_each_tensor(element, f), ...); }, value);
}
template <typename K, typename T, typename C, typename A, typename F>
void visit(std::map<K, T, C, A>& value, F& f) {
  for (auto& entry : value) {
    for_each_tensor(entry.second, f);
  }
}
template <
    typename K,
    typename T,
    typename H,
    typename E,
    typename A,
    typename F>
void visit(std::unordered_map<K, T, H, E, A>& value, F& f) {
  for (auto& entry : value) {
    for_each_tensor(entry.second, f);
  }
}

} // namespace detail

/// Calls f(at::Tensor&) for each defined or undefined tensor in `value`, in
/// order. Does nothing for a type that it does not know (KnowsTensors).
template <typename T, typename F>
void for_each_tensor(T& value, F&& f) {
  if constexpr (detail::HasOwnVisit<T, F&>) {
    fsdp_for_each_tensor(value, f);
  } else if constexpr (requires { detail::visit(value, f); }) {
    detail::visit(value, f);
  }
}

} // namespace fsdp
