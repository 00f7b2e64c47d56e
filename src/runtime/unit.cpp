#include "runtime/unit.h"

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <utility>

#include "comm/error_text.h"
#include "fsdp/error.h"

namespace fsdp {

Unit::Unit(ParamGroup group, const FullyShardOptions& options)
    : group_(std::move(group)), options_(options) {}

Unit::~Unit() {
  if (tree_) {
    abandon(); // a parameter that outlives the module keeps its shard
    tree_->remove(this);
  }
}

void Unit::join(std::shared_ptr<UnitTree> tree, const std::string& name) {
  tree_ = std::move(tree);
  group_.unit = name;
  group_.tree = tree_->number();
  group_.entry = 0; // the former tree counted its own
  for (const auto& param : group_.params) {
    param->set_owner(name);
  }
  set_grad_hooks();
}

bool Unit::is_root() const {
  return tree_->units().front() == this;
}

// Note [Who keeps whom]: autograd graphs may outlive the model, so their hooks
// hold the unit weakly.
void Unit::set_grad_hooks() {
  const std::weak_ptr<Unit> weak = weak_from_this();
  for (std::size_t i = 0; i < group_.params.size(); ++i) {
    group_.params[i]->set_grad_hooks(
        {.before =
             [weak] {
               if (const auto unit = weak.lock()) {
                 unit->before_grad();
               }
             },
         .after =
             [weak, i] {
               if (const auto unit = weak.lock()) {
                 unit->after_grad(i);
               }
             }});
  }
}

void Unit::start_unshard() {
  if (state_ != State::kSharded || group_.params.empty()) {
    return;
  }
  mark_gather(/*begins=*/true);
  {
    const PhaseScope scope(*tree_, UnitPhase::kWaitUnshard, *this);
    tree_->engine().start_unshard(group_);
  }
  state_ = State::kUnsharding;
  ++num_unshards_;
  tree_->observe(UnitEvent::kUnshard, *this);
}

void Unit::mark_gather(bool begins) const {
  if (tree_->engine().gathers_move_rows()) {
    begins ? tree_->begin(UnitPhase::kUnshard, *this)
           : tree_->end(UnitPhase::kUnshard, *this);
  }
}

void Unit::unshard() {
  start_unshard();
  if (state_ == State::kUnsharded) {
    for (const auto& param : group_.params) {
      param->follow_requires_grad();
    }
  }
  if (state_ == State::kUnsharding) {
    {
      const PhaseScope scope(*tree_, UnitPhase::kWaitUnshard, *this);
      tree_->engine().finish_unshard(group_);
    }
    state_ = State::kUnsharded;
    mark_gather(/*begins=*/false);
    tree_->observe(UnitEvent::kWaitUnshard, *this);
  }
}

void Unit::reshard() {
  if (state_ == State::kSharded) {
    return;
  }
  tree_->engine().reshard(group_);
  if (state_ == State::kUnsharding) { // nobody has used it
    mark_gather(/*begins=*/false);
  }
  state_ = State::kSharded;
  tree_->observe(UnitEvent::kReshard, *this);
}

void Unit::pre_forward(
    const std::vector<at::Tensor*>& inputs,
    const std::vector<at::Tensor*>& fixed) {
  if (in_backward()) {
    // A recomputation (activation checkpoint): its graph is a part of the
    // backward that is running, which ends what is begun here.
    tree_->begin_backward();
    enter_backward();
    unshard();
    cast_inputs(inputs);
    return;
  }
  tree_->begin_forward(*this);
  unshard();
  tree_->prefetch_forward();
  cast_inputs(inputs);
  open_uses_.push_back(
      c10::GradMode::is_enabled() ? std::make_shared<Use>() : nullptr);
  if (open_uses_.back()) {
    hook_inputs(inputs);
    hook_inputs(fixed);
  }
  tree_->begin(UnitPhase::kForward, *this);
}

void Unit::post_forward(const std::vector<at::Tensor*>& outputs) {
  if (in_backward()) {
    cast_outputs(outputs);
    return;
  }
  if (!tree_->in_forward()) {
    throw UsageError(
        rank_prefix(tree_->engine().communicator().rank()) +
        "an exception was caught inside the forward of " + group_.describe() +
        ", where a unit had failed: let it pass, and catch it outside");
  }
  tree_->end(UnitPhase::kForward, *this);
  if (c10::GradMode::is_enabled() && open_uses_.back()) {
    open_uses_.back()->number = tree_->record_use(*this);
    ++pass_.num_uses;
    ever_used_with_grad_ = true;
    hook_outputs(outputs);
  }
  open_uses_.pop_back();
  if (!in_forward() && reshards_after_forward()) {
    reshard();
  }
  tree_->end_forward();
  cast_outputs(outputs);
}

bool Unit::reshards_after_forward() const {
  if (options_.reshard_after_forward) {
    return *options_.reshard_after_forward;
  }
  const bool is_needed_at_once =
      is_root() && tree_->entry_with_grad() && c10::GradMode::is_enabled();
  return !is_needed_at_once;
}

void Unit::forward_failed() noexcept {
  open_uses_.clear();
  if (in_backward()) {
    // The engine reports what ends the backward.
    tree_->set_current_unit(group_.describe());
  } else if (tree_->in_forward()) {
    tree_->fail("in the forward of " + group_.describe());
  }
}

void Unit::cast_inputs(const std::vector<at::Tensor*>& inputs) const {
  const auto& policy = options_.mp_policy;
  if (!policy.param_dtype || !policy.cast_forward_inputs) {
    return;
  }
  for (at::Tensor* input : inputs) {
    if (input->defined() && input->is_floating_point()) {
      *input = input->to(*policy.param_dtype);
    }
  }
}

void Unit::cast_outputs(const std::vector<at::Tensor*>& outputs) const {
  const auto& policy = options_.mp_policy;
  if (!policy.output_dtype) {
    return;
  }
  for (at::Tensor* output : outputs) {
    if (output->defined() && output->is_floating_point()) {
      *output = output->to(*policy.output_dtype);
    }
  }
}

// Note [End of a unit's backward]: a hook on a non-leaf input fires when the
// gradient of that input is complete, and the engine runs everything inside the
// unit (made later) before that. A leaf's hook can fire too early and stays on
// the leaf, so leaves get none; a unit without non-leaf input ends with the
// backward.
void Unit::hook_inputs(const std::vector<at::Tensor*>& inputs) {
  for (at::Tensor* input : inputs) {
    if (!input->defined() || !input->requires_grad() || input->is_leaf()) {
      continue;
    }
    input->register_hook(
        [weak = weak_from_this(), use = open_uses_.back()](const at::Tensor&) {
          if (const auto unit = weak.lock()) {
            unit->pass_use(use);
          }
        });
  }
}

void Unit::hook_outputs(const std::vector<at::Tensor*>& outputs) {
  for (at::Tensor* output : outputs) {
    if (!output->defined() || !output->requires_grad()) {
      continue;
    }
    const auto hook = [weak = weak_from_this(),
                       use = open_uses_.back(),
                       name = group_.describe()](const at::Tensor&) {
      const auto unit = weak.lock();
      if (!unit) {
        throw UsageError(
            "backward through " + name +
            ", whose module has been destroyed: keep the model until the "
            "backward of its loss is over");
      }
      unit->pre_backward(use);
    };
    if (!output->is_leaf()) {
      output->register_hook(hook);
    }
    // An in-place change of a view gives it a new grad_fn, which loses the
    // hook; its base keeps one.
    if (output->is_view()) {
      const at::Tensor base(output->_base());
      if (base.requires_grad() && !base.is_leaf()) {
        base.register_hook(hook);
      }
    }
  }
}

// Note [Order of collectives]: every rank must begin the same gathers and
// reductions in the same order, also when a parameter has a gradient on some
// ranks only. So gradients that arrive start no reduction, and a deferred
// gather begins at the latest before whatever may begin another collective.
void Unit::pre_backward(const std::shared_ptr<Use>& use) {
  tree_->begin_backward();
  tree_->set_current_unit(group_.describe());
  tree_->flush_prefetch();
  enter_backward();
  if (!use || use->passed_in != tree_->backward_number()) {
    unshard();
  }
  if (use) {
    begin_use(*use);
    tree_->defer_prefetch(use->number);
  }
  if (!pass_.is_phase_open) {
    pass_.is_phase_open = true;
    tree_->begin(UnitPhase::kBackward, *this);
  }
}

void Unit::end_backward_phase() {
  if (std::exchange(pass_.is_phase_open, false)) {
    tree_->end(UnitPhase::kBackward, *this);
  }
}

void Unit::begin_use(Use& use) {
  const std::uint64_t number = tree_->backward_number();
  if (use.begun_in != number && use.passed_in != number) {
    use.begun_in = number;
    ++pass_.num_begun;
  }
}

void Unit::enter_backward() {
  if (!pass_.in_backward) {
    pass_.in_backward = true;
    for (const auto& param : group_.params) {
      param->begin_backward();
    }
  }
}

void Unit::before_grad() {
  if (pass_.in_backward) {
    return;
  }
  if (!ever_used_with_grad_) {
    throw UsageError(
        rank_prefix(tree_->engine().communicator().rank()) +
        "a gradient came for " + group_.describe() +
        ", whose forward was called past its hooks; call it through its holder "
        "(block(x), block->forward(x)), or as Block::Impl where its Impl is "
        "named");
  }
  pre_backward(nullptr);
}

void Unit::after_grad(std::size_t param) {
  tree_->flush_prefetch();
  group_.params[param]->take_grad();
}

void Unit::pass_use(const std::shared_ptr<Use>& use) {
  if (use->passed_in == tree_->backward_number()) {
    return;
  }
  use->passed_in = tree_->backward_number();
  ++pass_.num_passed;
  if (use->begun_in == use->passed_in) {
    --pass_.num_begun;
  }
  if (pass_.num_passed == pass_.num_uses) {
    end_backward_phase();
  }
  // A unit may follow itself: the output of one use is the input of the next.
  if (pass_.in_backward && pass_.num_begun == 0) {
    reshard(); // first, so that the next gather takes its memory
  }
  tree_->flush_prefetch();
  if (pass_.in_backward && pass_.num_passed == pass_.num_uses &&
      !pass_.reduction_started) {
    start_reduction();
  }
}

void Unit::start_reduction() {
  pass_.reduction_started = true;
  const auto& params = group_.params;
  if (!sync_gradients_) {
    for (const auto& param : params) {
      param->keep_unreduced();
    }
    group_.has_unreduced_backward = true;
    return;
  }
  const bool is_trainable =
      std::any_of(params.begin(), params.end(), [](const auto& param) {
        return param->is_reduced();
      });
  if (is_trainable) {
    const PhaseScope scope(*tree_, UnitPhase::kReduce, *this);
    tree_->engine().start_reduce(group_);
    ++num_reductions_;
    tree_->observe(UnitEvent::kReduce, *this);
  }
}

void Unit::reduce_leftovers() {
  if (!pass_.in_backward) {
    if (!sync_gradients_ || !group_.has_unreduced_backward) {
      return;
    }
    // Used only in backwards that kept their gradients.
    enter_backward();
  }
  const auto& params = group_.params;
  const bool came_late =
      std::any_of(params.begin(), params.end(), [](const auto& param) {
        return param->has_taken_grad();
      });
  if (!pass_.reduction_started || came_late) {
    start_reduction();
  }
}

void Unit::end_backward() {
  if (pass_.in_backward) {
    for (const auto& param : group_.params) {
      param->end_backward();
    }
    reshard();
  } else if (state_ == State::kUnsharding || pass_.num_uses > 0) {
    reshard(); // a use that the backward did not reach
  }
  pass_ = {};
}

void Unit::abandon() noexcept {
  try {
    reshard();
  } catch (...) {
    // Only a wait can fail here, of a gather that the failure has ended.
    state_ = State::kSharded;
  }
  for (const auto& param : group_.params) {
    param->abandon_backward();
  }
  group_.has_unreduced_backward = false;
  open_uses_.clear();
  pass_ = {};
}

} // namespace fsdp
