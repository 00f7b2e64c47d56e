#include "train/memory_reports.h"

#include <cstdint>
#include <type_traits>

#include "comm/communicator.h"
#include "fsdp/process_group.h"

namespace fsdp {

std::vector<MemoryReport> gather_memory_reports(const ProcessGroup& group) {
  static_assert(std::is_trivially_copyable_v<MemoryReport>);
  const auto size = static_cast<std::size_t>(group.size());
  const auto rank = static_cast<std::size_t>(group.rank());
  std::vector<MemoryReport> reports(size);
  reports[rank] = memory_report();
  const std::vector<std::int64_t> counts(size, sizeof(MemoryReport));
  group.communicator()
      .all_gather(
          reinterpret_cast<std::byte*>(&reports[rank]),
          reinterpret_cast<std::byte*>(reports.data()),
          counts,
          DType::kUInt8,
          "the memory reports")
      ->wait();
  return reports;
}

} // namespace fsdp
