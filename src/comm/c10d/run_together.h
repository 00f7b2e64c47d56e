#pragma once
// A failure on one rank must not leave the others waiting.

#include <functional>

#include "fsdp/error.h"

namespace fsdp {

class ProcessGroup;

/// Every rank throws it at the same point, from numbers that all of them have.
class AgreedError : public Error {
 public:
  using Error::Error;
};

/// Runs `body`, in which the ranks of `group` meet. An exception that the
/// others do not know of is told to them before it goes on.
void run_together(const ProcessGroup& group, const std::function<void()>& body);

} // namespace fsdp
