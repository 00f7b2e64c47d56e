#include "comm/c10d/run_together.h"

#include <cstdint>
#include <exception>

#include "comm/communicator.h"
#include "fsdp/process_group.h"

namespace fsdp {

void run_together(
    const ProcessGroup& group, const std::function<void()>& body) {
  Communicator& communicator = group.communicator();
  const std::uint64_t epoch = communicator.epoch();
  try {
    body();
  } catch (const AgreedError&) {
    throw;
  } catch (const std::exception& error) {
    if (communicator.epoch() == epoch) {
      communicator.fail(error.what());
    }
    throw;
  }
}

} // namespace fsdp
