#pragma once
// The units below one root: what they share while a step runs (FSDP2's
// FSDPStateContext). The root is the outermost module that fully_shard was
// called on; each later call on an ancestor takes the trees below it over.
//
// A tree belongs to one rank and is used from one thread at a time; a backward
// may run on another thread than its forward.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/fully_shard.h"
#include "fsdp/unit_phases.h"
#include "runtime/backward_listener.h"
#include "runtime/shard_engine.h"

namespace fsdp {

class Unit;

class UnitTree final : public BackwardListener,
                       public std::enable_shared_from_this<UnitTree> {
 public:
  /// `number`: of the tree on this engine, the same on every rank.
  UnitTree(std::shared_ptr<ShardEngine> engine, std::uint32_t number)
      : engine_(std::move(engine)), number_(number) {}

  ShardEngine& engine() const { return *engine_; }
  std::uint32_t number() const { return number_; }
  /// Root first, in the order of named_modules.
  const std::vector<Unit*>& units() const { return units_; }
  void set_units(std::vector<Unit*> units) { units_ = std::move(units); }
  void remove(Unit* unit);

  // A forward: the outermost unit's opens and closes it.

  /// [collective] Before `unit`'s forward. The outermost one publishes the
  /// units below it; another unit that runs in it (a sibling, a module that two
  /// units share) is published when its forward begins.
  void begin_forward(Unit& unit);
  /// After the unit was gathered: begins the gathers of those that followed it
  /// in the last forward.
  void prefetch_forward();
  void end_forward();
  bool in_forward() const { return depth_ > 0; }
  /// Grad mode at the outermost forward.
  bool entry_with_grad() const { return entry_with_grad_; }

  /// [collective] An explicit unshard(): an entry of its own unless a forward
  /// or a backward is under way.
  void unshard(Unit& unit);

  // A backward.

  /// Notes a use of `unit` that a backward will come back to; returns its
  /// number.
  std::size_t record_use(Unit& unit);
  void begin_backward();
  /// Of the backward under way, else of the last one; 0: none yet.
  std::uint64_t backward_number() const { return backward_number_; }
  /// To be called with the use whose backward begins; what was used before it
  /// is gathered at the runtime's next event, when the unit after it is gone.
  void defer_prefetch(std::size_t use);
  void flush_prefetch();
  void set_current_unit(const std::string& description) {
    current_unit_ = description;
  }
  void backward_ended(std::uint64_t number) override;
  void backward_failed(std::uint64_t number) noexcept override;

  /// Inside a catch block: tells the other ranks, and returns every unit to its
  /// sharded state with the gradients of the failed step dropped.
  void fail(const std::string& where) noexcept;

  void set_prefetch_depth(int depth) { prefetch_depth_ = depth; }
  void set_observer(UnitObserver observer) { observer_ = std::move(observer); }
  void observe(UnitEvent event, const Unit& unit) const;
  void set_phase_observer(UnitPhaseObserver observer) {
    phase_observer_ = std::move(observer);
  }
  void begin(UnitPhase phase, const Unit& unit) const;
  void end(UnitPhase phase, const Unit& unit) const;

 private:
  std::vector<Unit*> units_below(const Unit& unit) const;
  void require_memory(
      const char* what,
      const Unit& unit,
      const std::vector<Unit*>& units) const;
  void prepare(const std::vector<Unit*>& units);
  void publish(const Request& request, const std::vector<Unit*>& units);
  bool is_published(Unit& unit) const;
  void drop_unused_prefetches();

  std::shared_ptr<ShardEngine> engine_;
  const std::uint32_t number_;
  std::vector<Unit*> units_;
  int depth_ = 0;
  bool entry_with_grad_ = false;
  std::uint64_t entry_ = 0; ///< outermost forwards and unshard() calls so far
  std::uint64_t entry_epoch_ = 0;
  std::vector<Unit*> forward_order_;  ///< of the forward under way
  std::vector<Unit*> recorded_order_; ///< of the last whole forward
  std::vector<Unit*> uses_;           ///< since the last backward
  bool backward_active_ = false;
  std::uint64_t backward_number_ = 0;
  std::uint64_t running_backward_ = 0; ///< fsdp::backward_number() of it
  std::int64_t deferred_use_ = -1;
  std::string current_unit_;
  int prefetch_depth_ = 1;
  UnitObserver observer_;
  UnitPhaseObserver phase_observer_;
};

/// A phase that lasts as long as this.
class PhaseScope {
 public:
  PhaseScope(const UnitTree& tree, UnitPhase phase, const Unit& unit)
      : tree_(tree), phase_(phase), unit_(unit) {
    tree_.begin(phase_, unit_);
  }
  ~PhaseScope() { tree_.end(phase_, unit_); }
  PhaseScope(const PhaseScope&) = delete;
  PhaseScope& operator=(const PhaseScope&) = delete;

 private:
  const UnitTree& tree_;
  UnitPhase phase_;
  const Unit& unit_;
};

} // namespace fsdp
