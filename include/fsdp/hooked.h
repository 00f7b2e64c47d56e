#pragma once
// Modules whose forward can be hooked: what fully_shard needs of a module.
//
//   struct BlockImpl : torch::nn::Module {
//     torch::Tensor forward(torch::Tensor x);
//   };
//   FSDP_MODULE(Block); // in place of TORCH_MODULE(Block)
//
//   fsdp::HookedHolder<torch::nn::LinearImpl> fc(10, 5); // a stock module
//
// block(x), block->forward(x), Sequential, ModuleList + as<Block>() all reach
// the hooks. A call that names BlockImpl (shared_ptr<BlockImpl>, BlockImpl&)
// does not: say Block::Impl. A forward with default arguments gets one overload
// for each shorter call and then does not fit in Sequential; FSDP_MODULE_EXACT
// keeps the one full signature instead. Copies made by clone() would lose the
// hooks, so clone() throws UsageError. Tensors inside an argument of a type of
// the program's own are not seen: a MixedPrecisionPolicy does not cast them.

#include <c10/util/Exception.h>
#include <c10/util/Type.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <concepts>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "fsdp/error.h"
#include "fsdp/for_each_tensor.h"
#include "fsdp/forward_hooks.h"

namespace fsdp {

namespace detail {

template <typename F>
struct ForwardSignature; // undefined: forward is overloaded or a template

#define FSDP_FORWARD_SIGNATURE(QUALIFIERS, IS_CONST)   \
  template <typename R, typename C, typename... A>     \
  struct ForwardSignature<R (C::*)(A...) QUALIFIERS> { \
    using Result = R;                                  \
    using Arguments = std::tuple<A...>;                \
    static constexpr bool kIsConst = IS_CONST;         \
  };
FSDP_FORWARD_SIGNATURE(, false)
FSDP_FORWARD_SIGNATURE(&, false)
FSDP_FORWARD_SIGNATURE(noexcept, false)
FSDP_FORWARD_SIGNATURE(& noexcept, false)
FSDP_FORWARD_SIGNATURE(const, true)
FSDP_FORWARD_SIGNATURE(const&, true)
FSDP_FORWARD_SIGNATURE(const noexcept, true)
FSDP_FORWARD_SIGNATURE(const& noexcept, true)
#undef FSDP_FORWARD_SIGNATURE

template <typename Impl>
concept HasPlainForward =
    requires { typename ForwardSignature<decltype(&Impl::forward)>::Result; };

template <typename Impl>
using SignatureOf = ForwardSignature<decltype(&Impl::forward)>;

template <typename F>
struct DeclaringClass;
template <typename F, typename C>
struct DeclaringClass<F C::*> {
  using type = C;
};

/// The user's module with the hooks' place, but no forward of its own yet.
template <typename Impl>
class HookedCore : public Impl, public HookedBase {
 public:
  using Impl::Impl;

  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<at::Device>& = std::nullopt) const override {
    throw UsageError(
        "clone() of hooked module '" + fsdp_type_name() +
        "' would lose its hooks; construct a new module and copy its "
        "parameters");
  }

  void pretty_print(std::ostream& stream) const override {
    using Declaring =
        typename DeclaringClass<decltype(&Impl::pretty_print)>::type;
    if constexpr (std::is_same_v<Declaring, torch::nn::Module>) {
      stream << fsdp_type_name();
    } else {
      Impl::pretty_print(stream);
    }
  }

  std::string fsdp_type_name() const override {
    std::string name = c10::demangle_type<Impl>();
    if (name.size() > 4 && name.ends_with("Impl")) {
      name.resize(name.size() - 4);
    }
    return name;
  }

 protected:
  template <typename Result, typename... A, typename Self>
  static Result run_hooked(Self& self, StoredArgument<A>... stored) {
    const auto call = [&self, &stored...]() -> Result {
      return self.Impl::forward(static_cast<A&&>(stored)...);
    };
    if (!self.fsdp_hooks()) {
      return call();
    }
    std::vector<at::Tensor*> inputs;
    std::vector<at::Tensor*> fixed;
    (collect_argument<A>(stored, inputs, fixed), ...);
    // The handle keeps the hooks alive should the forward replace them.
    const std::shared_ptr<ForwardHooks> hooks = self.fsdp_hooks();
    return run_between_hooks(*hooks, inputs, fixed, call);
  }
};

/// `Base` with one more forward, of the arguments A...; kHides: the first one,
/// which hides the user's.
template <typename Base, bool kHides, bool kIsConst, typename R, typename... A>
class WithForward;

template <typename Base, typename R, typename... A>
class WithForward<Base, true, false, R, A...> : public Base {
 public:
  using Base::Base;
  R forward(A... arguments) {
    return Base::template run_hooked<R, A...>(
        *this, std::forward<A>(arguments)...);
  }
};
template <typename Base, typename R, typename... A>
class WithForward<Base, true, true, R, A...> : public Base {
 public:
  using Base::Base;
  R forward(A... arguments) const {
    return Base::template run_hooked<R, A...>(
        *this, std::forward<A>(arguments)...);
  }
};
template <typename Base, typename R, typename... A>
class WithForward<Base, false, false, R, A...> : public Base {
 public:
  using Base::Base;
  using Base::forward;
  R forward(A... arguments) {
    return Base::template run_hooked<R, A...>(
        *this, std::forward<A>(arguments)...);
  }
};
template <typename Base, typename R, typename... A>
class WithForward<Base, false, true, R, A...> : public Base {
 public:
  using Base::Base;
  using Base::forward;
  R forward(A... arguments) const {
    return Base::template run_hooked<R, A...>(
        *this, std::forward<A>(arguments)...);
  }
};

template <typename Base, bool kHides, typename Signature, std::size_t... I>
auto with_forward(std::index_sequence<I...>) -> WithForward<
    Base,
    kHides,
    Signature::kIsConst,
    typename Signature::Result,
    std::tuple_element_t<I, typename Signature::Arguments>...>;

template <typename Impl, typename Arguments, std::size_t... I>
constexpr bool callable_with(std::index_sequence<I...>) {
  return std::invocable<
      decltype([](auto& module, auto&&... a) -> decltype(module.forward(std::forward<decltype(a)>(a)...)) {
        return module.forward(std::forward<decltype(a)>(a)...);
      }),
      Impl&,
      std::tuple_element_t<I, Arguments>...>;
}

/// Adds the forwards of kArity, kArity - 1, ... arguments as far as the user's
/// default arguments allow.
template <typename Base, typename Impl, std::size_t kArity>
struct WithShorterForwards {
  using Signature = SignatureOf<Impl>;
  static auto make() {
    if constexpr (callable_with<Impl, typename Signature::Arguments>(
                      std::make_index_sequence<kArity>{})) {
      using Next = decltype(with_forward<Base, false, Signature>(
          std::make_index_sequence<kArity>{}));
      if constexpr (kArity > 0) {
        return typename WithShorterForwards<Next, Impl, kArity - 1>::Wrapped{};
      } else {
        return std::type_identity<Next>{};
      }
    } else {
      return std::type_identity<Base>{};
    }
  }
  struct Wrapped : decltype(make()) {};
  using type = typename Wrapped::type;
};

template <typename Impl>
struct HookedTypes {
  static_assert(
      !requires { typename Impl::ContainedType; },
      "name the Impl, not its holder: HookedHolder<torch::nn::LinearImpl>");
  static_assert(
      HasPlainForward<Impl>,
      "fsdp needs one plain forward: it is overloaded or a template here; wrap "
      "the module in one with a single forward, or use fsdp::run_unit");
  using Signature = SignatureOf<Impl>;
  static constexpr std::size_t kArity =
      std::tuple_size_v<typename Signature::Arguments>;
  using Exact = decltype(with_forward<HookedCore<Impl>, true, Signature>(
      std::make_index_sequence<kArity>{}));
  static auto full() {
    if constexpr (kArity > 0) {
      return std::type_identity<
          typename WithShorterForwards<Exact, Impl, kArity - 1>::type>{};
    } else {
      return std::type_identity<Exact>{};
    }
  }
  using Full = typename decltype(full())::type;
};

} // namespace detail

/// `Impl` with hooks around its forward; the same names of parameters.
template <typename Impl>
using Hooked = typename detail::HookedTypes<Impl>::Full;
/// The same with the full signature only (fits in torch::nn::Sequential).
template <typename Impl>
using HookedExact = typename detail::HookedTypes<Impl>::Exact;

/// A module holder that passes any arguments on to forward.
template <typename Contained>
class HookedContainer : public torch::nn::ModuleHolder<Contained> {
 public:
  using torch::nn::ModuleHolder<Contained>::ModuleHolder;
  using Impl = Contained;

  template <typename... A>
  decltype(auto) operator()(A&&... arguments) {
    return this->get()->forward(std::forward<A>(arguments)...);
  }
};

/// For stock modules: HookedHolder<torch::nn::LinearImpl> fc(10, 5).
template <typename Impl>
using HookedHolder = HookedContainer<Hooked<Impl>>;

/// Runs `body` as a forward of `module` (an encode() or generate() that is not
/// its forward): the unit is gathered before it and its result hooked. `module`
/// is a holder of a hooked module; before fully_shard `body` just runs. It
/// returns nothing or what for_each_tensor knows, on every rank alike.
template <typename Holder, typename Body>
auto run_unit(Holder& module, Body&& body) {
  const std::shared_ptr<detail::ForwardHooks> hooks = module->fsdp_hooks();
  if (!hooks) {
    return body();
  }
  return detail::run_between_hooks(*hooks, {}, {}, std::forward<Body>(body));
}

} // namespace fsdp

#define FSDP_MODULE_IMPL(Name, ImplType)                      \
  class Name : public ::fsdp::HookedContainer<ImplType> {     \
   public:                                                    \
    using ::fsdp::HookedContainer<ImplType>::HookedContainer; \
  }
/// In place of TORCH_MODULE(Name).
#define FSDP_MODULE(Name) FSDP_MODULE_IMPL(Name, ::fsdp::Hooked<Name##Impl>)
/// The same with the full signature only: see HookedExact.
#define FSDP_MODULE_EXACT(Name) \
  FSDP_MODULE_IMPL(Name, ::fsdp::HookedExact<Name##Impl>)
