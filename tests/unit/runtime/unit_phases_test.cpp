// What set_unit_phase_observer tells of a step.

#include "fsdp/unit_phases.h"

#include <algorithm>
#include <map>

#include "unit/runtime/runtime_test.h"

namespace fsdp {
namespace {

using testing::batch_of;
using testing::OnRanks;
using testing::shard_stack;
using testing::Stack;

struct Edge {
  UnitPhase phase;
  bool begins;
  std::string unit;
  bool operator==(const Edge&) const = default;
};

std::vector<Edge> edges_of_a_step(const ProcessGroup& world) {
  Stack model;
  shard_stack(model, world);
  std::vector<Edge> edges;
  set_unit_phase_observer(
      *model, [&](UnitPhase phase, bool begins, const std::string& unit) {
        edges.push_back({phase, begins, unit});
      });
  const auto batch = batch_of(world.rank(), world.size());
  at::mse_loss(model(batch.x), batch.y).backward();
  set_unit_phase_observer(*model, nullptr);
  at::mse_loss(model(batch.x), batch.y).backward(); // not observed
  return edges;
}

std::ptrdiff_t count(const std::vector<Edge>& edges, UnitPhase phase) {
  return std::ranges::count_if(edges, [&](const Edge& edge) {
    return edge.phase == phase && edge.begins;
  });
}

class UnitPhases : public OnRanks {};

TEST_P(UnitPhases, EveryPhaseOfAStepBeginsAndEnds) {
  run([](const ProcessGroup& world) {
    std::map<std::pair<UnitPhase, std::string>, int> open;
    for (const Edge& edge : edges_of_a_step(world)) {
      int& depth = open[{edge.phase, edge.unit}];
      depth += edge.begins ? 1 : -1;
      EXPECT_GE(depth, 0) << edge.unit;
      EXPECT_LE(depth, 1) << edge.unit;
    }
    for (const auto& [what, depth] : open) {
      EXPECT_EQ(depth, 0) << what.second;
    }
  });
}

TEST_P(UnitPhases, EachUnitIsComputedBothWaysAndReduced) {
  const bool is_shared = std::get<0>(GetParam()) == "inproc";
  run([is_shared](const ProcessGroup& world) {
    const auto edges = edges_of_a_step(world);
    EXPECT_EQ(count(edges, UnitPhase::kForward), 4); // root and three blocks
    EXPECT_EQ(count(edges, UnitPhase::kBackward), 4);
    EXPECT_EQ(count(edges, UnitPhase::kReduce), 5); // and the backward's end
    EXPECT_EQ(count(edges, UnitPhase::kPublish), 1);
    // The blocks both ways, the root once.
    EXPECT_EQ(count(edges, UnitPhase::kUnshard), is_shared ? 0 : 7);
  });
}

TEST_P(UnitPhases, BlocksRunInsideTheRootsForward) {
  run([](const ProcessGroup& world) {
    const auto edges = edges_of_a_step(world);
    const auto place = [&](const Edge& edge) {
      return std::ranges::find(edges, edge) - edges.begin();
    };
    using enum UnitPhase;
    EXPECT_LT(place({kForward, true, ""}), place({kForward, true, "blocks.0"}));
    EXPECT_LT(
        place({kForward, false, "blocks.2"}), place({kForward, false, ""}));
    EXPECT_LT(
        place({kBackward, false, "blocks.0"}),
        place({kReduce, true, "blocks.0"}));
  });
}

TEST(UnitPhasesErrors, AModuleWithoutUnitsIsNamed) {
  Stack model;
  EXPECT_THAT(
      testing::thrown_text<UsageError>(
          [&] { set_unit_phase_observer(*model, nullptr); }),
      ::testing::StartsWith("set_unit_phase_observer: no unit in module '"));
}

INSTANTIATE_TEST_SUITE_P(
    Engines,
    UnitPhases,
    ::testing::ValuesIn(testing::two_engines(3)),
    testing::name_of_ranks);

} // namespace
} // namespace fsdp
