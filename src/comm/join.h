#pragma once
// How the ranks of a new group find out together whether all can take part.

#include <string>

#include "comm/backend.h"

namespace fsdp {

/// "rank 3 to join group 'world'", for waits on the store.
std::string joining(const BackendArgs& args, int rank);

/// [collective] Each rank says why it cannot take part (empty: it can). Returns
/// the objection of the lowest rank that has one, with its name, or an empty
/// string, on every rank alike. `key` names the question in the store. Throws
/// TimeoutError naming a rank that does not answer. After an objection the
/// ranks may end: rank 0, whose process may hold the store, returns last.
std::string agree(
    const BackendArgs& args,
    const std::string& key,
    const std::string& objection);

} // namespace fsdp
