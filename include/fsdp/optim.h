#pragma once
// Optimizers over local shards: one fused call per step, or one per dtype.
// torch::optim's optimizers work on sharded parameters too, as long as they
// treat elements one by one (no LBFGS, no per-tensor norms).
//
// A step is local: no communication. Construct them after fully_shard, with the
// parameters as they are then. Options out of range throw UsageError.

#include <cstddef>
#include <memory>
#include <vector>

#include "fsdp/export.h"

namespace at {
class Tensor;
}

namespace fsdp {

class Optimizer;

namespace optim {
struct StateSlot;
std::vector<StateSlot> slots_of(Optimizer& optimizer, std::size_t index);
} // namespace optim

/// Decoupled weight decay (Loshchilov and Hutter, 2019).
struct AdamWOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;
};

/// L2 penalty added to the gradient (Kingma and Ba, 2015).
struct AdamOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
};

struct SGDOptions {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
};

/// Base of the fused optimizers. Keeps the parameters it was given (handles,
/// not copies); parameters without `.grad` are skipped, as in torch.optim. Each
/// step bumps the parameters' versions, so that autograd notices a stale
/// backward. Throws UsageError when a parameter is gathered, or its gradient
/// does not have its shape. fsdp/optim_state.h keeps and loads their state.
class FSDP_API Optimizer {
 public:
  virtual ~Optimizer() = default;
  /// Changes parameters and state in place, or throws before the first change.
  virtual void step() = 0;
  /// Drops the gradients (sets them undefined).
  void zero_grad();
  /// For the next step, which throws UsageError for one below 0 or not finite.
  void set_lr(double lr) { lr_ = lr; }
  double lr() const { return lr_; }
  const std::vector<at::Tensor>& parameters() const { return parameters_; }

 protected:
  Optimizer(std::vector<at::Tensor> parameters, double lr);
  std::vector<at::Tensor> parameters_;
  double lr_;

 private:
  friend std::vector<optim::StateSlot> optim::slots_of(
      Optimizer& optimizer, std::size_t index);
  virtual std::vector<optim::StateSlot> slots(std::size_t index) = 0;
};

class FSDP_API AdamW final : public Optimizer {
 public:
  explicit AdamW(std::vector<at::Tensor> parameters, AdamWOptions options = {});
  ~AdamW() override;
  void step() override;

 private:
  std::vector<optim::StateSlot> slots(std::size_t index) override;
  struct State;
  std::unique_ptr<State> state_;
};

class FSDP_API Adam final : public Optimizer {
 public:
  explicit Adam(std::vector<at::Tensor> parameters, AdamOptions options = {});
  ~Adam() override;
  void step() override;

 private:
  std::vector<optim::StateSlot> slots(std::size_t index) override;
  struct State;
  std::unique_ptr<State> state_;
};

class FSDP_API SGD final : public Optimizer {
 public:
  explicit SGD(std::vector<at::Tensor> parameters, SGDOptions options = {});
  ~SGD() override;
  void step() override;

 private:
  std::vector<optim::StateSlot> slots(std::size_t index) override;
  struct State;
  std::unique_ptr<State> state_;
};

} // namespace fsdp
