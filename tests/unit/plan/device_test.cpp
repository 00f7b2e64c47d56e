#include "plan/device.h"

#include <gmock/gmock.h>

#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "fsdp/error.h"
#include "refusal.h"

namespace fsdp::plan {
namespace {

using ::testing::HasSubstr;

/// The cells of a line of comma-separated values without quoted commas.
std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells(1);
  bool quoted = false;
  for (const char c : line) {
    quoted = quoted != (c == '"');
    if (c == ',' && !quoted) {
      cells.emplace_back();
    } else {
      cells.back() += c;
    }
  }
  return cells;
}

TEST(Devices, HaveTheFiguresOfTheDataSheets) {
  std::ifstream file(FSDP_PLAN_DATA "/hardware.csv");
  std::string line;
  std::getline(file, line);
  std::map<std::string, std::size_t> column;
  for (const std::string& name : cells_of(line)) {
    column.emplace(name, column.size());
  }
  std::size_t num_compared = 0;
  while (std::getline(file, line)) {
    const std::vector<std::string> cells = cells_of(line);
    const Device& device = find_device(cells.at(0));
    const auto expect = [&](const char* name, double figure, double unit) {
      const std::string& cell = cells.at(column.at(name));
      if (!cell.empty()) {
        EXPECT_DOUBLE_EQ(figure, std::stod(cell) * unit)
            << device.name << " " << name;
        ++num_compared;
      }
    };
    expect("peak_bf16_dense_tflops", device.peak_bf16, 1e12);
    expect("peak_fp16_dense_tflops", device.peak_fp16, 1e12);
    expect("peak_tf32_dense_tflops", device.peak_tf32, 1e12);
    expect("peak_fp32_tflops", device.peak_fp32, 1e12);
    expect("peak_fp8_dense_tflops", device.peak_fp8, 1e12);
    expect("hbm_GBps", device.memory_bandwidth, 1e9);
    expect("intra_GBps_per_gpu_unidir", device.node_bandwidth, 1e9);
    expect("inter_node_GBps_per_gpu", device.network_bandwidth, 1e9);
    if (device.peak_bf16 > 0) {
      expect("measured_max_matmul_bf16_tflops", device.best_matmul_bf16, 1e12);
    }
    // Programs get at most what the name says, in GiB, and 90 % of it.
    const double spec = std::stod(cells.at(column.at("mem_GB_spec")));
    const double gib = device.memory_bytes / (1024.0 * 1024 * 1024);
    EXPECT_LE(gib, spec) << device.name;
    EXPECT_GE(gib, 0.9 * spec) << device.name;
  }
  EXPECT_GT(num_compared, devices().size() * 6);
}

TEST(Devices, AreFoundByNameCaseAndDashesAside) {
  EXPECT_EQ(find_device("h100_sxm_80gb").name, "H100-SXM-80GB");
  testing::expect_throws<ConfigError>(
      [] { find_device("a100"); },
      HasSubstr(
          "device 'a100' is unknown: the nearest is 'A100-SXM-40GB', "
          "'A100-SXM-80GB', 'A100-PCIe-80GB'; known are A100-SXM-40GB, "));
  testing::expect_throws<ConfigError>(
      [] { find_device("MI300"); }, HasSubstr("the nearest is 'MI300X'"));
}

TEST(Devices, TellTheRateOfAType) {
  const Device& h100 = find_device("H100-SXM-80GB");
  EXPECT_EQ(h100.peak(DType::kBFloat16), 989e12);
  EXPECT_EQ(h100.peak(DType::kFloat8), 1979e12);
  EXPECT_EQ(h100.peak(DType::kFloat32), 494.5e12); // tf32
  const Device& v100 = find_device("V100-SXM2-32GB");
  EXPECT_EQ(v100.peak(DType::kFloat32), 15.7e12); // it has no tf32
  testing::expect_throws<ConfigError>(
      [&] { v100.peak(DType::kBFloat16); },
      "device 'V100-SXM2-32GB': its rate in bfloat16 is not known: choose "
      "another precision, or give the peak");
  testing::expect_throws<ConfigError>(
      [&] { h100.peak(DType::kInt8); }, HasSubstr("its rate in int8"));
}

} // namespace
} // namespace fsdp::plan
