#include "runtime/shard_engine.h"

#include <c10/core/Device.h>

#include <map>
#include <mutex>

#include "runtime/collective_engine.h"
#include "runtime/shared_memory_engine.h"

namespace fsdp {

std::shared_ptr<ShardEngine> shard_engine_for(
    const ProcessGroup& group, const std::string& device_type) {
  static std::mutex mutex;
  static auto* engines =
      new std::map<const Communicator*, std::weak_ptr<ShardEngine>>();
  const std::lock_guard lock(mutex);
  auto& known = (*engines)[&group.communicator()];
  auto engine = known.lock();
  if (!engine) {
    const c10::Device device(device_type);
    if (device.is_cpu() && group.communicator().host_memory()) {
      engine = std::make_shared<SharedMemoryEngine>(group);
    } else {
      engine = std::make_shared<CollectiveEngine>(group, device);
    }
    known = engine;
  }
  return engine;
}

} // namespace fsdp
