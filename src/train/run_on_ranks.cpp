#include "train/run_on_ranks.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <string>

#include "comm/c10d/run_together.h"
#include "fsdp/error.h"

namespace fsdp {
namespace {

std::string one_line(std::string text) {
  while (text.ends_with('\n')) {
    text.pop_back();
  }
  std::ranges::replace(text, '\n', ' ');
  return text;
}

} // namespace

void with_one_line_errors(const std::function<void()>& body) {
  try {
    body();
  } catch (const c10::Error& error) {
    throw Error(one_line(error.what_without_backtrace()));
  }
}

void run_on_ranks(
    const ProcessGroup& group, const std::function<void()>& body) {
  run_together(group, [&] { with_one_line_errors(body); });
}

} // namespace fsdp
