#include "fsdp/meta_init.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>
#include <torch/nn/init.h>
#include <torch/nn/modules.h>
#include <torch/types.h>

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "fsdp/error.h"
#include "support/throws.h"
#include "unit/runtime/meta_test.h"

namespace fsdp {
namespace {

namespace nn = torch::nn;
using at::Tensor;
using testing::expect_all_meta;
using testing::expect_replays;
using testing::expect_same;
using testing::kSeed;
using testing::Make;
using testing::make_eager;
using testing::make_meta;
using testing::thrown_text;

template <typename Holder, typename... Arguments>
Make stock(Arguments... arguments) {
  return [=] { return Holder(arguments...).ptr(); };
}

TEST(MetaInit, ReplaysLibTorchsModules) {
  expect_replays(stock<nn::Linear>(5, 3));
  expect_replays(stock<nn::Bilinear>(5, 3, 2));
  expect_replays(stock<nn::Embedding>(nn::EmbeddingOptions(9, 4)));
  expect_replays(
      stock<nn::Embedding>(nn::EmbeddingOptions(9, 4).padding_idx(2)));
  expect_replays(stock<nn::EmbeddingBag>(9, 4));
  expect_replays(stock<nn::Conv1d>(nn::Conv1dOptions(4, 6, 3)));
  expect_replays(stock<nn::Conv2d>(nn::Conv2dOptions(4, 6, 3).groups(2)));
  expect_replays(
      stock<nn::ConvTranspose2d>(nn::ConvTranspose2dOptions(4, 6, 3)));
  expect_replays(stock<nn::BatchNorm1d>(6));
  expect_replays(stock<nn::BatchNorm2d>(6));
  expect_replays(stock<nn::InstanceNorm1d>(
      nn::InstanceNorm1dOptions(6).affine(true).track_running_stats(true)));
  expect_replays(stock<nn::LayerNorm>(nn::LayerNormOptions({4, 6})));
  expect_replays(stock<nn::GroupNorm>(2, 6));
  expect_replays(stock<nn::PReLU>());
  expect_replays(stock<nn::RNN>(5, 3));
  expect_replays(stock<nn::LSTM>(
      nn::LSTMOptions(5, 4).num_layers(2).bidirectional(true).proj_size(3)));
  expect_replays(stock<nn::GRU>(nn::GRUOptions(5, 4).num_layers(2)));
  expect_replays(stock<nn::LSTMCell>(5, 3));
  expect_replays(stock<nn::MultiheadAttention>(
      nn::MultiheadAttentionOptions(8, 2).kdim(4).vdim(6).add_bias_kv(true)));
  expect_replays(stock<nn::Transformer>(nn::TransformerOptions(8, 2, 1, 1)));
  expect_replays([] {
    return nn::Sequential(
               nn::Linear(4, 4), nn::Dropout(0.5), nn::ReLU(), nn::Linear(4, 2))
        .ptr();
  });
}

/// Registers what `fill` gives as the parameter "p".
struct FilledImpl : nn::Module {
  FilledImpl(const std::function<Tensor()>& fill, bool is_parameter) {
    if (is_parameter) {
      register_parameter("p", fill(), false);
    } else {
      register_buffer("p", fill());
    }
    // Draws what would be other numbers, had fill() drawn too few.
    register_buffer("after", at::rand({3}));
  }
};

void expect_replays_tensor(const std::function<Tensor()>& fill) {
  for (const bool is_parameter : {true, false}) {
    expect_replays(
        [&] { return std::make_shared<FilledImpl>(fill, is_parameter); });
  }
}

Tensor filled(const std::function<void(Tensor)>& fill) {
  Tensor tensor = at::empty({6, 4});
  fill(tensor);
  return tensor;
}

TEST(MetaInit, ReplaysInitialisers) {
  for (const std::function<void(Tensor)>& fill :
       std::vector<std::function<void(Tensor)>>{
           [](Tensor t) { nn::init::kaiming_uniform_(t); },
           [](Tensor t) { nn::init::kaiming_normal_(t); },
           [](Tensor t) { nn::init::xavier_uniform_(t); },
           [](Tensor t) { nn::init::xavier_normal_(t); },
           [](Tensor t) { nn::init::orthogonal_(t); },
           [](Tensor t) { nn::init::eye_(t); },
           [](Tensor t) { nn::init::constant_(t, 1.5); },
           [](Tensor t) { t.bernoulli_(0.5); },
           [](Tensor t) { t.exponential_(2).mul_(3).add_(1); },
           [](Tensor t) { t.data().normal_(1, 2); },
           [](Tensor t) { t.detach().normal_().clamp_(-1, 1); },
           [](Tensor t) { t.zero_().narrow(0, 1, 2).uniform_(); },
           [](Tensor t) { t.fill_(2).index_fill_(0, at::arange(2), 0); },
           [](Tensor t) {
             t.normal_();
             t[2].zero_();
           },
           [](Tensor t) {
             t.normal_();
             t.copy_(t * 2);
           },
           [](Tensor t) { t.t().normal_(); },
       }) {
    expect_replays_tensor([&] { return filled(fill); });
  }
}

TEST(MetaInit, ReplaysTablesAndLiterals) {
  for (const std::function<Tensor()>& make :
       std::vector<std::function<Tensor()>>{
           [] {
             return torch::tensor({1.5, 2.5, 3.5});
           },
           [] { return torch::tensor(4.5); },
           [] {
             return torch::tensor({{1.0, 2.0}, {3.0, 4.0}}, at::kDouble);
           },
           [] { return at::scalar_tensor(3); },
           [] {
             return at::arange(12).view({3, 4}).t().contiguous().to(at::kFloat);
           },
           [] { return at::linspace(0, 1, 5); },
           [] { return at::logspace(0, 1, 5); },
           [] {
             return at::tril(at::ones({4, 4}));
           },
           [] { return at::hann_window(8); },
           [] { return at::eye(3); },
           [] { return at::full({3}, 2.5, at::kBFloat16); },
           [] {
             return at::randn({3, 4}, at::kBFloat16);
           },
           [] { return at::randn({17}).to(at::kHalf); },
           [] { return at::randperm(20).to(at::kFloat); },
           [] { return at::randint(10, {5}).to(at::kFloat); },
           [] {
             return at::outer(
                        at::arange(4, at::kDouble),
                        at::linspace(0, 1, 3, at::kDouble))
                 .cos();
           },
           [] {
             return at::view_as_real(
                        at::polar(at::ones({4}), at::arange(4, at::kFloat)))
                 .contiguous();
           },
           [] {
             return at::cat({at::zeros({2}), at::rand({3})});
           },
           [] {
             return at::stack({at::rand({3}), at::ones({3})}).sum(0);
           },
           [] { return std::get<0>(at::sort(at::rand({9}))); },
           [] {
             return at::rand({6, 4}).chunk(2)[1];
           },
           [] {
             return at::rand({6, 4}).index({at::arange(3)});
           },
           [] { return at::where(at::rand({9}) > 0.5, 1.0, 0.0); },
           [] { return at::normal(0.5, 2.0, {7}); },
           [] { return at::normal(at::zeros({7}), at::ones({7})); },
           [] { return at::dropout(at::ones({30}), 0.5, true); },
           [] { return at::rand_like(at::empty({5})); },
           [] { return at::cumprod(at::rand({5}), 0).to(at::kDouble); },
       }) {
    expect_replays_tensor(make);
  }
}

// What LibTorch's modules do not do.

struct OddImpl : nn::Module {
  OddImpl() {
    a = register_module("a", nn::Linear(4, 6));
    b = register_module("b", nn::Linear(4, 6));
    b->weight = b->register_parameter("tied", a->weight);
    frozen = register_parameter("frozen", at::randn({5}) * 0.02 + 1, false);
    table = at::arange(6).outer(at::linspace(0, 1, 3)).sin();
    // A view of a part of it, and a second one.
    half = register_buffer("half", table.narrow(0, 0, 3));
    apply([](nn::Module& module) {
      if (auto* linear = module.as<nn::Linear>()) {
        linear->bias.data().uniform_(-2, 2);
      }
    });
    to(at::kDouble);
    nn::init::normal_(a->weight);
  }
  nn::Linear a{nullptr};
  nn::Linear b{nullptr};
  Tensor frozen;
  Tensor table; // not registered
  Tensor half;
};

TEST(MetaInit, ReplaysTiedFrozenAndConvertedParametersAndPlainMembers) {
  const auto make = [] { return std::make_shared<OddImpl>(); };
  expect_replays(make);
  at::manual_seed(kSeed);
  const auto eager = make();
  const auto meta = std::static_pointer_cast<OddImpl>(make_meta(make));
  EXPECT_TRUE(meta->table.is_meta());
  materialize(*meta, kSeed);
  EXPECT_TRUE(at::equal(meta->table, eager->table));
}

TEST(MetaInit, KeepsViewsOfOneMemory) {
  struct Views : nn::Module {
    Views() {
      both = register_buffer("both", at::rand({4, 3}));
      first = register_buffer("first", both.narrow(0, 0, 2));
    }
    Tensor both, first;
  };
  const auto views = std::static_pointer_cast<Views>(
      make_meta([] { return std::make_shared<Views>(); }));
  materialize(*views, kSeed);
  views->first.zero_();
  EXPECT_EQ(views->both.narrow(0, 0, 2).abs().sum().item<float>(), 0);
  EXPECT_TRUE(views->first.is_alias_of(views->both));
}

TEST(MetaInit, DrawsFromAGeneratorOfTheModulesOwn) {
  const auto generator = [] { return at::detail::createCPUGenerator(99); };
  const auto fill = [](at::Generator own) {
    const Tensor first = at::empty({40}).normal_(0, 1, own);
    const Tensor between = at::rand({3});
    const Tensor second = at::rand({40}, own);
    own.set_current_seed(5);
    return at::cat({first, between, second, at::rand({20}, own)});
  };
  at::manual_seed(kSeed);
  const Tensor expected = fill(generator());
  const auto meta = make_meta([&] {
    return std::make_shared<FilledImpl>(
        [&] { return fill(generator()); }, true);
  });
  materialize(*meta, kSeed);
  EXPECT_TRUE(at::equal(meta->named_parameters()["p"], expected));
}

TEST(MetaInit, ReadsTensorsThatHaveValues) {
  const Tensor pretrained = at::arange(12, at::kFloat).view({3, 4});
  float raw[] = {1, 2, 3};
  const Make make = [&] {
    nn::Sequential all(nn::Linear(4, 3), nn::Linear(3, 3));
    const c10::NoGradGuard grad_off;
    all[0]->as<nn::Linear>()->weight.copy_(pretrained);
    all[1]->as<nn::Linear>()->bias.add_(at::from_blob(raw, {3}));
    all->register_buffer(
        "sum", all[1]->as<nn::Linear>()->weight + pretrained.sum());
    all->register_buffer("noise", at::rand_like(pretrained));
    all->register_buffer("tail", at::randn({5}));
    return all.ptr();
  };
  const auto eager = make_eager(make);
  const auto meta = make_meta(make);
  expect_all_meta(*meta);
  raw[0] = 100; // the record has a copy
  const c10::NoGradGuard grad_off;
  pretrained.zero_();
  materialize(*meta, kSeed);
  expect_same(*meta, *eager);
}

TEST(MetaInit, LeavesWhatHasValuesAsItIs) {
  float raw[] = {1, 2, 3};
  const nn::Linear made_before(4, 4);
  const Tensor weight = made_before->weight.detach().clone();
  nn::Sequential all{nullptr};
  {
    const MetaInitGuard guard;
    all = nn::Sequential(made_before, nn::Linear(4, 2));
    all->register_buffer("raw", at::from_blob(raw, {3}));
    all->register_buffer("copy", at::from_blob(raw, {3}).clone());
  }
  EXPECT_FALSE(made_before->weight.is_meta());
  EXPECT_FALSE(all->named_buffers()["copy"].is_meta());
  materialize(all, kSeed);
  EXPECT_TRUE(at::equal(made_before->weight, weight));
  EXPECT_EQ(all->named_buffers()["raw"].data_ptr(), raw);
  at::manual_seed(kSeed);
  expect_same(*all[1]->as<nn::Linear>(), *nn::Linear(4, 2));
  const Tensor second = all[1]->as<nn::Linear>()->weight.detach().clone();
  materialize(all, kSeed + 1); // nothing is left to do
  EXPECT_TRUE(at::equal(all[1]->as<nn::Linear>()->weight, second));
}

TEST(MetaInit, GuardsNestAndEndWithExceptions) {
  nn::Linear first{nullptr}, second{nullptr}, third{nullptr};
  {
    const MetaInitGuard guard;
    first = nn::Linear(3, 3);
    {
      const MetaInitGuard inner;
      second = nn::Linear(3, 3);
    }
    third = nn::Linear(3, 3);
  }
  EXPECT_TRUE(third->weight.is_meta());
  const nn::Sequential all(first, second, third);
  materialize(all, kSeed);
  at::manual_seed(kSeed);
  for (const auto& linear : {first, second, third}) {
    expect_same(*linear, *nn::Linear(3, 3));
  }

  EXPECT_EQ(
      thrown_text<std::runtime_error>([] {
        const MetaInitGuard guard;
        throw std::runtime_error("the constructor's");
      }),
      "the constructor's");
  EXPECT_FALSE(at::empty({2}).is_meta());
}

TEST(MetaInit, IsOfOneThread) {
  const MetaInitGuard guard;
  bool is_meta = true;
  std::thread([&] { is_meta = at::ones({2}).is_meta(); }).join();
  EXPECT_FALSE(is_meta);
  EXPECT_TRUE(at::ones({2}).is_meta());
}

TEST(MetaInit, PiecesOfOneGuardHaveTheValuesOfTheWhole) {
  const Make make = [] {
    return nn::Sequential(
               nn::Linear(4, 3), nn::BatchNorm1d(3), nn::Linear(3, 2))
        .ptr();
  };
  const auto eager = make_eager(make);
  const auto meta =
      std::static_pointer_cast<nn::SequentialImpl>(make_meta(make));
  materialize(*meta->ptr(2), kSeed);
  EXPECT_FALSE(meta->ptr(2)->parameters()[0].is_meta());
  EXPECT_TRUE(meta->ptr(0)->parameters()[0].is_meta());
  materialize(*meta, kSeed);
  expect_same(*meta, *eager);
}

TEST(MetaInit, SeveralGuardsAreReplayedInTheirOrder) {
  nn::Linear first{nullptr}, second{nullptr};
  {
    const MetaInitGuard guard;
    first = nn::Linear(4, 3);
    at::rand({5}); // nobody's, but drawn
  }
  {
    const MetaInitGuard guard;
    second = nn::Linear(3, 2);
  }
  const nn::Sequential all(second, first);
  materialize(all, kSeed);
  at::manual_seed(kSeed);
  const nn::Linear eager_first(4, 3);
  at::rand({5});
  const nn::Linear eager_second(3, 2);
  expect_same(*first, *eager_first);
  expect_same(*second, *eager_second);
}

TEST(MetaInit, LeavesTheRandomGeneratorAsItWas) {
  at::manual_seed(3);
  const Tensor expected = at::rand({4});
  at::manual_seed(3);
  const auto meta = make_meta([] {
    at::randperm(10);
    return nn::Linear(20, 20).ptr();
  });
  materialize(*meta, kSeed);
  EXPECT_TRUE(at::equal(at::rand({4}), expected));
}

TEST(MetaInit, NamesFunctionsThatNeedAValue) {
  const auto text = [](const std::function<void()>& body) {
    return thrown_text<UsageError>([&] {
      const MetaInitGuard guard;
      body();
    });
  };
  const std::string needs =
      " needs the value of a tensor that has none yet; compute it before the "
      "guard, or from other than tensors";
  EXPECT_EQ(
      text([] { at::linspace(0, 1, 4)[1].item<float>(); }),
      "MetaInitGuard: 'aten::item'" + needs);
  EXPECT_EQ(
      text([] { at::multinomial(at::rand({10}), 4); }),
      "MetaInitGuard: 'aten::multinomial'" + needs);
  EXPECT_EQ(
      text([] { at::equal(at::ones({2}), at::ones({2})); }),
      "MetaInitGuard: 'aten::equal'" + needs);
  EXPECT_EQ(
      text([] { at::nonzero(at::ones({2})); }),
      "MetaInitGuard: 'aten::nonzero'" + needs);
  const Tensor real = at::ones({2});
  const std::string writes =
      " would write what has no value yet into a tensor that has values; do "
      "it before the guard, or make that tensor inside the guard";
  EXPECT_EQ(
      text([&] { real.copy_(at::zeros({2})); }),
      "MetaInitGuard: 'aten::copy_'" + writes);
  EXPECT_EQ(
      text([&] { real.normal_(); }), "MetaInitGuard: 'aten::normal_'" + writes);
  EXPECT_TRUE(at::equal(real, at::ones({2})));
  const Tensor foreign = at::empty({2}, at::device(at::kMeta));
  EXPECT_EQ(
      text([&] { foreign + 1; }),
      "MetaInitGuard: 'aten::add.Scalar' takes a meta tensor that no "
      "MetaInitGuard has made; make it inside the guard");
  const auto other = make_meta([] { return nn::Linear(2, 2).ptr(); });
  EXPECT_EQ(
      text([&] { nn::init::zeros_(other->parameters()[0]); }),
      "MetaInitGuard: 'aten::zero_' takes a tensor of another MetaInitGuard; "
      "build both under one guard");
  EXPECT_EQ(
      text([] { at::ones({2}).to_sparse(); }),
      "MetaInitGuard: 'aten::to_sparse' gives a tensor that cannot be "
      "recorded; make it before the guard");
}

TEST(MetaInit, SaysWhyThereIsNoMemory) {
  const std::string expected =
      "the memory of a tensor is asked for, but inside MetaInitGuard it has "
      "none yet: fill it with tensor functions or torch::tensor({...}), or "
      "make it before the guard";
  const MetaInitGuard guard;
  EXPECT_EQ(
      thrown_text<c10::Error>([] {
        at::tensor(std::vector<float>{1, 2});
      }),
      expected);
  EXPECT_EQ(
      thrown_text<c10::Error>([] { at::ones({2}).data_ptr<float>()[0] = 1; }),
      expected);
  EXPECT_EQ(
      thrown_text<c10::Error>([] {
        const Tensor table = at::ones({2, 2});
        table.accessor<float, 2>()[0][0] = 1;
      }),
      expected);
}

TEST(MetaInit, RefusesWhatWasNotRecorded) {
  nn::Linear linear{nullptr};
  {
    const MetaInitGuard guard;
    linear = nn::Linear(3, 3);
  }
  linear->register_buffer("own", at::empty({2}, at::device(at::kMeta)));
  EXPECT_EQ(
      thrown_text<UsageError>([&] { materialize(linear, kSeed); }),
      "materialize: no MetaInitGuard has recorded how 'own' came about; make "
      "it inside the guard, to(dtype) included, or call to_empty() and fill "
      "it");
  EXPECT_TRUE(linear->weight.is_meta());
  linear->to(at::kBFloat16);
  EXPECT_EQ(
      thrown_text<UsageError>([&] { materialize(linear, kSeed); }),
      "materialize: no MetaInitGuard has recorded how 'weight', 'bias', 'own' "
      "came about; make it inside the guard, to(dtype) included, or call "
      "to_empty() and fill it");
}

TEST(MetaInit, RefusesWhatWasWrittenToOutside) {
  const auto meta = make_meta([] { return nn::Linear(3, 3).ptr(); });
  nn::init::zeros_(meta->named_parameters()["bias"]);
  EXPECT_EQ(
      thrown_text<UsageError>([&] { materialize(*meta, kSeed); }),
      "materialize: 'bias' was written to outside of its MetaInitGuard, which "
      "would be lost; initialise it inside the guard, or after materialize()");
  EXPECT_TRUE(meta->named_parameters()["weight"].is_meta());
}

TEST(MetaInit, GivesEmptyMemoryToo) {
  const auto meta = std::static_pointer_cast<nn::LinearImpl>(
      make_meta([] { return nn::Linear(3, 2).ptr(); }));
  to_empty(*meta);
  EXPECT_FALSE(meta->weight.is_meta());
  EXPECT_TRUE(meta->weight.requires_grad());
  nn::init::ones_(meta->weight);
  nn::init::zeros_(meta->bias);
  meta->forward(at::ones({1, 3})).sum().backward();
  EXPECT_TRUE(at::equal(meta->weight.grad(), at::ones({2, 3})));
}

TEST(MetaInit, KeepsTheDefaultDtypeOfItsTime) {
  const Make make = [] { return nn::Linear(3, 2).ptr(); };
  const auto float_dtype = c10::get_default_dtype();
  c10::set_default_dtype(c10::scalarTypeToTypeMeta(at::kDouble));
  const auto eager = make_eager(make);
  const auto meta = make_meta(make);
  c10::set_default_dtype(float_dtype);
  materialize(*meta, kSeed);
  expect_same(*meta, *eager);
  EXPECT_EQ(meta->parameters()[0].scalar_type(), at::kDouble);
}

TEST(MetaInit, TrainsAfterwards) {
  const auto meta = std::static_pointer_cast<nn::LinearImpl>(
      make_meta([] { return nn::Linear(3, 2).ptr(); }));
  materialize(*meta, kSeed);
  meta->forward(at::ones({1, 3})).sum().backward();
  EXPECT_TRUE(at::equal(meta->weight.grad(), at::ones({2, 3})));
}

} // namespace
} // namespace fsdp
