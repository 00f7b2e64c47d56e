#pragma once
// An n-dimensional array of ranks with named axes (FSDP2 DeviceMesh); hands out
// the groups along its axes.

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fsdp/export.h"
#include "fsdp/process_group.h"

namespace fsdp {

/// Copies are handles of one mesh. Ranks are laid out in row-major order. Axes
/// count from 0; one that the mesh lacks throws UsageError. Nothing here talks
/// to other ranks: the groups are made with the mesh.
class FSDP_API DeviceMesh {
 public:
  /// What the ranks compute on: "cpu", the only one with a backend so far.
  const std::string& device_type() const;
  int ndim() const;
  int size(int axis) const;
  int size() const;                                   ///< of all axes together
  const std::vector<std::string>& axis_names() const; ///< empty: unnamed
  /// This rank's coordinate along `axis`.
  int coordinate(int axis) const;
  /// The ranks that differ from this one along `axis` only.
  ProcessGroup group(int axis) const;
  ProcessGroup group(std::string_view axis_name) const;

  struct Impl; // for init_device_mesh alone
  explicit DeviceMesh(std::shared_ptr<const Impl> impl)
      : impl_(std::move(impl)) {}

 private:
  std::shared_ptr<const Impl> impl_;
};

/// [collective over `world`] A mesh over all ranks of `world`. Throws
/// UsageError unless `device_type` is "cpu", the product of `shape` is the
/// world's size, `shape` has one or two axes and `axis_names` is empty or has a
/// unique name for each.
FSDP_API DeviceMesh init_device_mesh(
    const ProcessGroup& world,
    std::string device_type,
    std::vector<int> shape,
    std::vector<std::string> axis_names = {});

} // namespace fsdp
