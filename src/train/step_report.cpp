#include "train/step_report.h"

#include <algorithm>
#include <cmath>

#include "comm/communicator.h"
#include "fsdp/process_group.h"

namespace fsdp {
namespace {

constexpr std::size_t kSlots = 3; // numbers of each rank

} // namespace

double StepReport::loss() const {
  double sum = 0;
  double tokens = 0;
  for (const RankReport& rank : ranks) {
    sum += rank.loss_sum;
    tokens += rank.num_tokens;
  }
  return tokens > 0 ? sum / tokens : 0;
}

std::int64_t StepReport::num_tokens() const {
  double tokens = 0;
  for (const RankReport& rank : ranks) {
    tokens += rank.num_tokens;
  }
  return static_cast<std::int64_t>(tokens);
}

std::int64_t StepReport::peak_tensor_bytes() const {
  double most = 0;
  for (const RankReport& rank : ranks) {
    most = std::max(most, rank.peak_tensor_bytes);
  }
  return static_cast<std::int64_t>(most);
}

std::vector<int> StepReport::nonfinite_ranks() const {
  std::vector<int> found;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (!std::isfinite(ranks[rank].loss_sum)) {
      found.push_back(static_cast<int>(rank));
    }
  }
  return found;
}

StepReport exchange(
    const ProcessGroup& group, const RankReport& mine, double seconds) {
  const auto size = static_cast<std::size_t>(group.size());
  const auto rank = static_cast<std::size_t>(group.rank());
  // Every rank adds zeros to the others' slots: one sum is a gather as well.
  std::vector<double> slots(size * kSlots + 1);
  slots[rank * kSlots] = mine.loss_sum;
  slots[rank * kSlots + 1] = mine.num_tokens;
  slots[rank * kSlots + 2] = mine.peak_tensor_bytes;
  slots.back() = rank == 0 ? seconds : 0;
  group.communicator().all_reduce(
      slots.data(),
      static_cast<std::int64_t>(slots.size()),
      DType::kFloat64,
      ReduceOp::kSum,
      "the step's report");

  StepReport report;
  for (std::size_t i = 0; i < size; ++i) {
    report.ranks.push_back(
        {slots[i * kSlots], slots[i * kSlots + 1], slots[i * kSlots + 2]});
  }
  report.seconds = slots.back();
  return report;
}

} // namespace fsdp
