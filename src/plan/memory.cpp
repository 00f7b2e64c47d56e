#include "plan/memory.h"

#include <algorithm>
#include <vector>

#include "plan/activations.h"
#include "plan/constants.h"
#include "plan/count.h"
#include "plan/traffic.h"
#include "plan/unit_bytes.h"

namespace fsdp::plan {

namespace {

/// Rank 0's bytes by the rules of docs/planner.md.
class Accountant {
 public:
  Accountant(const ModelShape& model, const Job& job, const Cluster& cluster)
      : model_(model),
        job_(job),
        has_caching_allocator_(cluster.device.has_caching_allocator),
        whole_(shards_of(model, shard_ranks(job, cluster))),
        compute_(size_of(job.precision.compute)) {
    measure(model.root, shard_ranks(job, cluster));
    for (const UnitShape& block : model.blocks) {
      measure(block, shard_ranks(job, cluster));
    }
  }

  MemoryEstimate estimate() {
    MemoryEstimate memory;
    add_shards(memory);
    add_gathered(memory);
    add_gradients(memory);
    memory.logits = logit_bytes(model_, job_);
    memory.activations = activation_bytes(model_, job_);
    memory.working = working_bytes(model_, job_);
    if (job_.cpu_offload) {
      move_to_host(memory);
    }
    if (has_caching_allocator_) {
      add_overhead(memory);
    }
    return memory;
  }

 private:
  /// One unit; the root is the first.
  struct Unit {
    std::int64_t gathered = 0; ///< its block, in the compute dtype
    std::int64_t padding = 0;
    std::int64_t numel = 0;
    std::int64_t own = 0;
  };

  void measure(const UnitShape& unit, std::int64_t shard) {
    const UnitShards shards = shards_of(unit, shard);
    const bool padded = job_.runtime != Runtime::kLibfsdp;
    units_.push_back(
        {.gathered = padded ? (Count(shards.numel) * compute_).value()
                            : gathered_bytes(unit, job_.precision.compute),
         .padding =
             padded ? (Count(shards.padded - shards.numel) * compute_).value()
                    : 0,
         .numel = shards.numel,
         .own = shards.own});
  }

  void add_shards(MemoryEstimate& memory) const {
    const Count own = Count(whole_.own) * size_of(job_.precision.master);
    memory.parameters = own.value();
    // A backward of libfsdp that fails leaves the sums before it as they were,
    // so its means are apart from them until its end.
    const bool sums_apart = job_.runtime == Runtime::kLibfsdp &&
                            job_.strategy != Strategy::kNoShard &&
                            job_.accumulation > 1 && job_.sync_every_pass;
    memory.gradients = (sums_apart ? own * 2 : own).value();
    switch (job_.optimizer) {
      case OptimizerKind::kAdamW:
        memory.optimizer = (own * 2 + Count(4) * whole_.num_tensors).value();
        break;
      case OptimizerKind::kSgdMomentum:
        memory.optimizer = own.value();
        break;
      case OptimizerKind::kSgd:
        break;
    }
  }

  /// The largest sum of `field` over `length` blocks in a row.
  std::int64_t largest_window(
      std::size_t length, std::int64_t Unit::*field) const {
    Count largest = 0;
    const std::size_t num_blocks = units_.size() - 1;
    length = std::min(length, num_blocks);
    for (std::size_t begin = 0; begin + length <= num_blocks; ++begin) {
      Count sum = 0;
      for (std::size_t i = begin; i < begin + length; ++i) {
        sum += units_[i + 1].*field;
      }
      largest = std::max(largest.value(), sum.value());
    }
    return largest.value();
  }

  std::int64_t sum_of(std::int64_t Unit::*field) const {
    Count sum = 0;
    for (const Unit& unit : units_) {
      sum += unit.*field;
    }
    return sum.value();
  }

  // Root, current and prefetched units. Replicas compute with what they own,
  // unless that has another type.
  void add_gathered(MemoryEstimate& memory) {
    if (job_.transport == Transport::kSharedMemory) {
      memory.shared_per_node = sum_of(&Unit::gathered);
      return;
    }
    if (job_.strategy == Strategy::kNoShard &&
        job_.precision.master == job_.precision.compute) {
      return;
    }
    const auto at_once = static_cast<std::size_t>(job_.prefetch_depth) + 1;
    const auto peak_of = [&](std::int64_t Unit::*field) {
      return keeps_gathered(job_.strategy) ? sum_of(field)
                                           : (Count(units_.front().*field) +
                                              largest_window(at_once, field))
                                                 .value();
    };
    memory.gathered = peak_of(&Unit::gathered);
    memory.padding = peak_of(&Unit::padding);
    whole_units_ = memory.gathered;
    if (job_.runtime != Runtime::kLibfsdp) {
      // What a gather received, until its parameters are copied out.
      memory.gathered =
          (Count(memory.gathered) + largest(&Unit::gathered)).value();
    }
  }

  std::int64_t largest(std::int64_t Unit::*field) const {
    std::int64_t most = 0;
    for (const Unit& unit : units_) {
      most = std::max(most, unit.*field);
    }
    return most;
  }

  void add_gradients(MemoryEstimate& memory) const {
    const bool accumulates = job_.accumulation > 1;
    const bool keeps_full = accumulates && !job_.sync_every_pass;
    const Count block = largest_window(1, &Unit::numel);
    const Count root = units_.front().numel;
    if (job_.strategy != Strategy::kNoShard) {
      // The root's come from the backward's begin to its end.
      memory.full_gradients = ((root + block) * compute_).value();
      if (keeps_full) {
        const Count all = whole_.numel;
        memory.full_gradients_at_loss =
            (all * size_of(job_.precision.reduce)).value();
        memory.full_gradients =
            (Count(memory.full_gradients) + memory.full_gradients_at_loss)
                .value();
      }
      memory.reduction = reduction_bytes(root, block).value();
    }
    if (accumulates && (!keeps_full || job_.strategy == Strategy::kNoShard)) {
      memory.gradients_at_loss =
          (Count(whole_.own) * size_of(job_.precision.master)).value();
    }
  }

  // Two are under way at most, the root's being the last. Shared memory is read
  // where autograd left it: of three units, the current one aside.
  Count reduction_bytes(Count root, Count block) const {
    if (job_.transport == Transport::kSharedMemory) {
      return block * compute_ * 2;
    }
    const std::int64_t largest = std::max(block.value(), root.value());
    return (block + largest) * size_of(gradient_wire(job_));
  }

  // Nothing of the loss is reused by a block's backward (see memory.h). What a
  // gather received and the root's reduction find free segments of their size.
  void add_overhead(MemoryEstimate& memory) const {
    Count reserved = Count(memory.parameters) + memory.gradients +
                     memory.optimizer + memory.padding + whole_units_ +
                     memory.full_gradients_at_loss + memory.activations +
                     memory.logits + memory.working;
    if (job_.strategy != Strategy::kNoShard) {
      reserved += head_gradient() + block_reductions();
    }
    memory.overhead =
        std::max<std::int64_t>(0, reserved.value() - memory.total());
  }

  Count head_gradient() const {
    const Count numel = model_.transformer ? Count(model_.transformer->vocab) *
                                                 model_.transformer->hidden
                                           : Count(units_.front().numel);
    return numel * compute_;
  }

  // One block's gradients, and two reductions under way. FSDP1 holds the memory
  // of one more until another stream is through with it.
  Count block_reductions() const {
    const Count block = largest_window(1, &Unit::numel);
    const std::size_t wire = size_of(gradient_wire(job_));
    const bool holds_more = job_.runtime == Runtime::kFsdp1;
    return block * (holds_more ? 2 : 1) * compute_ +
           block * (holds_more ? 3 : 2) * wire;
  }

  void move_to_host(MemoryEstimate& memory) const {
    memory.host =
        (Count(memory.parameters) + memory.gradients + memory.optimizer)
            .value();
    memory.parameters = 0;
    memory.gradients = 0;
    memory.gradients_at_loss = 0;
    memory.optimizer = 0;
  }

  const ModelShape& model_;
  const Job& job_;
  const bool has_caching_allocator_;
  const UnitShards whole_;
  const std::size_t compute_;
  std::vector<Unit> units_;
  std::int64_t whole_units_ = 0; ///< gathered, what gathers receive aside
};

} // namespace

std::array<MemoryPart, 11> parts_of(const MemoryEstimate& memory) {
  const MemoryEstimate& m = memory;
  // The backward begins with activations and ends with gradients.
  const Count before = Count(m.activations) + m.working + m.gradients_at_loss;
  const bool reduced = m.gradients >= before.value();
  return {
      {{"parameters", m.parameters, m.parameters, m.parameters},
       {"gradients",
        m.gradients,
        m.gradients_at_loss,
        reduced ? m.gradients : m.gradients_at_loss},
       {"optimizer", m.optimizer, m.optimizer, m.optimizer},
       {"padding", m.padding, m.padding, m.padding},
       {"gathered", m.gathered, m.gathered, m.gathered},
       {"reduction", m.reduction, 0, m.reduction},
       {"full_gradients",
        m.full_gradients,
        m.full_gradients_at_loss,
        m.full_gradients},
       {"logits", m.logits, m.logits, 0},
       {"activations",
        m.activations,
        m.activations,
        reduced ? 0 : m.activations},
       {"working", m.working, 0, reduced ? 0 : m.working},
       {"overhead", m.overhead, m.overhead, m.overhead}}};
}

namespace {

std::int64_t sum_of(
    const MemoryEstimate& memory, std::int64_t MemoryPart::*moment) {
  Count sum = 0;
  for (const MemoryPart& part : parts_of(memory)) {
    sum += part.*moment;
  }
  return sum.value();
}

} // namespace

std::int64_t MemoryEstimate::total_at_loss() const {
  return sum_of(*this, &MemoryPart::at_loss);
}

std::int64_t MemoryEstimate::total_in_backward() const {
  return sum_of(*this, &MemoryPart::in_backward);
}

std::int64_t MemoryEstimate::total() const {
  return std::max(total_at_loss(), total_in_backward());
}

double usable_bytes(const Device& device) {
  return device.memory_bytes *
         (device.has_caching_allocator ? double{kCrowdedShare} : 1);
}

bool is_crowded(const MemoryEstimate& memory, const Device& device) {
  return device.memory_bytes > 0 && device.has_caching_allocator &&
         static_cast<double>(memory.total()) > usable_bytes(device);
}

MemoryEstimate estimate_memory(
    const ModelShape& model, const Job& job, const Cluster& cluster) {
  check(job, cluster);
  return Accountant(model, job, cluster).estimate();
}

} // namespace fsdp::plan
