#include "comm/join.h"

#include <algorithm>

#include "comm/store.h"
#include "fsdp/error.h"

namespace fsdp {

namespace {

using Clock = std::chrono::steady_clock;
using Millis = std::chrono::milliseconds;

std::string heard(const std::string& key, int rank) {
  return key + ".heard." + std::to_string(rank);
}

// Waits, not for long, until the others have read the verdict.
void wait_until_heard(const BackendArgs& args, const std::string& key) {
  const auto deadline = Clock::now() + std::min(args.timeout, Millis(1000));
  for (int rank = 1; rank < args.size; ++rank) {
    const auto left =
        std::chrono::duration_cast<Millis>(deadline - Clock::now());
    try {
      args.store->get(
          heard(key, rank), std::max(left, Millis(1)), joining(args, rank));
    } catch (const TimeoutError&) {
      // It answered the question, and is on its own now.
    }
  }
}

} // namespace

std::string joining(const BackendArgs& args, int rank) {
  return "rank " + std::to_string(rank) + " to join group '" + args.group_name +
         "'";
}

std::string agree(
    const BackendArgs& args,
    const std::string& key,
    const std::string& objection) {
  // Values begin with '+' since a store may not tell empty from absent.
  args.store->set(key + '.' + std::to_string(args.rank), '+' + objection);
  if (args.rank != 0) {
    const std::string verdict =
        args.store->get(key, args.timeout, joining(args, 0)).substr(1);
    if (!verdict.empty()) {
      args.store->set(heard(key, args.rank), "+");
    }
    return verdict;
  }
  std::string verdict;
  for (int rank = 0; rank < args.size; ++rank) {
    const std::string answer = args.store
                                   ->get(
                                       key + '.' + std::to_string(rank),
                                       args.timeout,
                                       joining(args, rank))
                                   .substr(1);
    if (verdict.empty() && !answer.empty()) {
      verdict = "rank " + std::to_string(rank) + ": " + answer;
    }
  }
  args.store->set(key, '+' + verdict);
  if (!verdict.empty()) {
    wait_until_heard(args, key);
  }
  return verdict;
}

} // namespace fsdp
