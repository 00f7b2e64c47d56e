#include "comm/host/join.h"

#include "comm/store.h"

namespace fsdp::host {

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
    return args.store->get(key, args.timeout, joining(args, 0)).substr(1);
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
  return verdict;
}

void explain(const BackendArgs& args, const std::string& reason) {
  if (args.why_not != nullptr) {
    *args.why_not = reason;
  }
}

} // namespace fsdp::host
