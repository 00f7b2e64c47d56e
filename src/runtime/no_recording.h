#pragma once
// What the runtime does inside a MetaInitGuard is no part of the model.

#include <c10/core/impl/LocalDispatchKeySet.h>

namespace fsdp {

/// While it lives, a MetaInitGuard has no effect on this thread.
class NoRecording {
  c10::impl::ExcludeDispatchKeyGuard guard_{c10::DispatchKey::DeferredInit};
};

} // namespace fsdp
