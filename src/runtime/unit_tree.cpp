#include "runtime/unit_tree.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <utility>

#include "comm/error_text.h"
#include "fsdp/error.h"
#include "runtime/autograd_internals.h"
#include "runtime/name_list.h"
#include "runtime/unit.h"

namespace fsdp {

void UnitTree::remove(Unit* unit) {
  std::erase(units_, unit);
  std::erase(recorded_order_, unit);
  std::erase(uses_, unit);
}

void UnitTree::observe(UnitEvent event, const Unit& unit) const {
  if (observer_) {
    observer_(event, unit.name());
  }
}

void UnitTree::begin(UnitPhase phase, const Unit& unit) const {
  if (phase_observer_) {
    phase_observer_(phase, true, unit.name());
  }
}

void UnitTree::end(UnitPhase phase, const Unit& unit) const {
  if (phase_observer_) {
    phase_observer_(phase, false, unit.name());
  }
}

std::vector<Unit*> UnitTree::units_below(const Unit& unit) const {
  if (unit.name().empty()) {
    return units_;
  }
  std::vector<Unit*> below;
  const std::string prefix = unit.name() + ".";
  for (Unit* other : units_) {
    if (other == &unit || other->name().starts_with(prefix)) {
      below.push_back(other);
    }
  }
  return below;
}

// Before the ranks meet: mostly all of them lack the same parameters, and each
// then has the same error.
void UnitTree::require_memory(
    const char* what, const Unit& unit, const std::vector<Unit*>& units) const {
  std::vector<std::string> names;
  for (Unit* other : units) {
    for (const auto& param : other->param_group().params) {
      if (param->local().is_meta()) {
        names.push_back(param->qualified_name());
      }
    }
  }
  if (!names.empty()) {
    throw UsageError(
        rank_prefix(engine_->communicator().rank()) + what +
        unit.param_group().describe() + " needs memory for " +
        name_list(names) +
        ", still on the meta device; call materialize() or to_empty() first");
  }
}

void UnitTree::prepare(const std::vector<Unit*>& units) {
  for (Unit* unit : units) {
    ParamGroup& group = unit->param_group();
    bool has_changed_dtype = false;
    for (const auto& param : group.params) {
      has_changed_dtype = param->adopt_user_changes() || has_changed_dtype;
    }
    if (!group.params.empty() && (!group.slot || has_changed_dtype)) {
      unit->reshard();
      engine_->add(group);
    }
  }
}

// Every rank calls it at the same point: nobody may still be reading what the
// units held before.
void UnitTree::publish(
    const Request& request, const std::vector<Unit*>& units) {
  const PhaseScope scope(*this, UnitPhase::kPublish, *units_.front());
  engine_->communicator().meet(request);
  prepare(units);
  std::vector<ParamGroup*> groups;
  for (Unit* unit : units) {
    ParamGroup& group = unit->param_group();
    if (!group.params.empty()) {
      groups.push_back(&group);
      group.entry = entry_;
    }
  }
  engine_->publish(request, groups);
}

bool UnitTree::is_published(Unit& unit) const {
  const ParamGroup& group = unit.param_group();
  // A backward computes with what its forward has published.
  return group.params.empty() || group.entry == entry_ ||
         (in_backward() && group.entry > 0);
}

void UnitTree::begin_forward(Unit& unit) {
  forward_order_.push_back(&unit);
  const bool is_outermost = depth_++ == 0;
  if (is_outermost) {
    forward_order_.assign(1, &unit);
    entry_with_grad_ = c10::GradMode::is_enabled();
    entry_epoch_ = engine_->communicator().epoch();
    ++entry_;
    listen_to_backward(shared_from_this());
  } else if (is_published(unit)) {
    return;
  }
  const auto units =
      is_outermost ? units_below(unit) : std::vector<Unit*>{&unit};
  require_memory("the forward of ", unit, units);
  publish(
      {.meeting = Meeting::kForward,
       .grad_enabled = entry_with_grad_,
       .tree = number_,
       .subject = unit.param_group().describe()},
      units);
}

void UnitTree::prefetch_forward() {
  const std::size_t position = forward_order_.size() - 1;
  for (std::size_t ahead = 1;
       ahead <= static_cast<std::size_t>(prefetch_depth_);
       ++ahead) {
    if (position + ahead >= recorded_order_.size() ||
        recorded_order_[position] != forward_order_[position]) {
      return;
    }
    Unit& next = *recorded_order_[position + ahead];
    if (is_published(next)) {
      next.start_unshard();
    }
  }
}

void UnitTree::end_forward() {
  if (--depth_ > 0) {
    return;
  }
  drop_unused_prefetches();
  recorded_order_ = std::exchange(forward_order_, {});
}

void UnitTree::drop_unused_prefetches() {
  for (Unit* unit : units_) {
    if (unit->is_unsharding()) {
      unit->reshard();
    }
  }
}

void UnitTree::unshard(Unit& unit) {
  const bool is_entry = !in_forward() && !in_backward();
  const auto publish_and_unshard = [&] {
    if (!is_published(unit)) {
      require_memory("unshard() of ", unit, {&unit});
      publish(
          {.meeting = Meeting::kUnshard,
           .tree = number_,
           .subject = unit.param_group().describe()},
          {&unit});
    }
    unit.unshard();
  };
  if (!is_entry) {
    publish_and_unshard(); // a failure is told by who is under way
    return;
  }
  ++entry_;
  entry_epoch_ = engine_->communicator().epoch();
  try {
    publish_and_unshard();
  } catch (...) {
    fail("in unshard() of " + unit.param_group().describe());
    throw;
  }
}

std::size_t UnitTree::record_use(Unit& unit) {
  uses_.push_back(&unit);
  return uses_.size() - 1;
}

void UnitTree::begin_backward() {
  if (!backward_active_) {
    backward_active_ = true;
    running_backward_ = fsdp::backward_number();
    join_backward(shared_from_this());
    ++backward_number_;
    entry_epoch_ = engine_->communicator().epoch();
    engine_->begin_backward();
  }
}

void UnitTree::defer_prefetch(std::size_t use) {
  deferred_use_ = static_cast<std::int64_t>(use);
}

void UnitTree::flush_prefetch() {
  const auto use = std::exchange(deferred_use_, -1);
  for (std::int64_t ahead = 1; use >= 0 && ahead <= prefetch_depth_; ++ahead) {
    const auto before = use - ahead;
    if (before >= 0 && static_cast<std::size_t>(before) < uses_.size()) {
      uses_[static_cast<std::size_t>(before)]->start_unshard();
    }
  }
}

void UnitTree::backward_ended(std::uint64_t number) {
  if (!backward_active_ || running_backward_ != number) {
    return;
  }
  flush_prefetch();
  for (Unit* unit : units_) {
    unit->end_backward_phase();
  }
  for (auto unit = units_.rbegin(); unit != units_.rend(); ++unit) {
    (*unit)->reduce_leftovers();
  }
  {
    const PhaseScope scope(*this, UnitPhase::kReduce, *units_.front());
    engine_->finish_backward(units_.front()->param_group());
  }
  for (Unit* unit : units_) {
    unit->end_backward();
  }
  uses_.clear();
  deferred_use_ = -1;
  backward_active_ = false;
  current_unit_.clear();
}

void UnitTree::backward_failed(std::uint64_t number) noexcept {
  const bool concerns_this =
      backward_active_ ? running_backward_ == number : !uses_.empty();
  if (!concerns_this) {
    return;
  }
  fail(
      "in the backward of " +
      (current_unit_.empty() ? std::string("the loss") : current_unit_));
}

void UnitTree::fail(const std::string& where) noexcept {
  Communicator& comm = engine_->communicator();
  if (comm.epoch() == entry_epoch_) {
    const std::string text = current_exception_text();
    comm.fail(
        where + ": " + std::string(without_rank_prefix(comm.rank(), text)));
  }
  engine_->abandon();
  for (Unit* unit : units_) {
    unit->abandon();
  }
  depth_ = 0;
  forward_order_.clear();
  recorded_order_.clear(); // another one on each rank, after a mismatch
  uses_.clear();
  backward_active_ = false;
  deferred_use_ = -1;
  current_unit_.clear();
}

} // namespace fsdp
