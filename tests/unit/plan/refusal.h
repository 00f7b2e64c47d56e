#pragma once

#include <gmock/gmock.h>

#include <string>
#include <utility>

#include "support/throws.h"

namespace fsdp::testing {

/// `action` throws an `Expected` error whose text fits.
template <class Expected, class Action>
void expect_throws(
    Action&& action, const ::testing::Matcher<std::string>& text) {
  EXPECT_THAT(thrown_text<Expected>(std::forward<Action>(action)), text);
}

} // namespace fsdp::testing
