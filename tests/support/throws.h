#pragma once

#include <gtest/gtest.h>

#include <exception>
#include <string>

namespace fsdp::testing {

/// The text of the `Expected` error that `action` throws; a test failure, and
/// an empty text, if it throws none or another. LibTorch's errors without their
/// backtrace.
template <class Expected, class Action>
std::string thrown_text(Action&& action) {
  try {
    action();
  } catch (const Expected& error) {
    if constexpr (requires { error.what_without_backtrace(); }) {
      return error.what_without_backtrace();
    } else {
      return error.what();
    }
  } catch (const std::exception& error) {
    ADD_FAILURE() << "threw another error: " << error.what();
    return "";
  }
  ADD_FAILURE() << "threw nothing";
  return "";
}

} // namespace fsdp::testing
