#include "fsdp/device_mesh.h"

#include <algorithm>
#include <utility>

#include "comm/communicator.h"
#include "comm/error_text.h"
#include "fsdp/error.h"

namespace fsdp {

struct DeviceMesh::Impl {
  std::string device_type;
  std::vector<int> shape;
  std::vector<std::string> axis_names;
  std::vector<int> coordinates;
  std::vector<ProcessGroup> groups; ///< by axis
  int rank = 0;                     ///< in the world, for messages

  std::size_t checked_axis(int axis) const {
    if (axis < 0 || axis >= static_cast<int>(shape.size())) {
      throw UsageError(
          rank_prefix(rank) + "a device mesh of " +
          std::to_string(shape.size()) +
          (shape.size() == 1 ? " axis" : " axes") + " has no axis " +
          std::to_string(axis));
    }
    return static_cast<std::size_t>(axis);
  }
};

namespace {

std::string shape_text(const std::vector<int>& shape) {
  std::string text;
  for (const int n : shape) {
    text += (text.empty() ? "{" : ", ") + std::to_string(n);
  }
  return text + "}";
}

std::string names_text(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) {
    text += (text.empty() ? "'" : ", '") + name + "'";
  }
  return text;
}

void check_mesh(
    const ProcessGroup& world,
    const std::string& device_type,
    const std::vector<int>& shape,
    const std::vector<std::string>& names) {
  const auto refuse = [&](const std::string& why) {
    throw UsageError(rank_prefix(world.rank()) + "init_device_mesh: " + why);
  };
  if (device_type != "cpu" && !world.communicator().serves_devices()) {
    refuse(
        "device type '" + device_type +
        "' has no backend here; expected 'cpu'");
  }
  if (shape.empty() || shape.size() > 2) {
    refuse(
        "the shape has " + std::to_string(shape.size()) +
        " axes; expected 1 or 2");
  }
  long product = 1;
  for (const int n : shape) {
    if (n < 1) {
      refuse(
          "the shape " + shape_text(shape) +
          " has an axis without ranks; expected 1 or more on each");
    }
    product *= n;
  }
  if (product != world.size()) {
    refuse(
        "the shape " + shape_text(shape) + " holds " + std::to_string(product) +
        " ranks; expected the world's " + std::to_string(world.size()));
  }
  if (!names.empty() && names.size() != shape.size()) {
    refuse(
        std::to_string(names.size()) + " axis names for " +
        std::to_string(shape.size()) + " axes; expected one for each, or none");
  }
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (names[i].empty()) {
      refuse("axis " + std::to_string(i) + " has an empty name");
    }
    if (std::find(
            names.begin(), names.begin() + static_cast<long>(i), names[i]) !=
        names.begin() + static_cast<long>(i)) {
      refuse("two axes are named '" + names[i] + "'; expected unique names");
    }
  }
}

} // namespace

const std::string& DeviceMesh::device_type() const {
  return impl_->device_type;
}

int DeviceMesh::ndim() const {
  return static_cast<int>(impl_->shape.size());
}

int DeviceMesh::size(int axis) const {
  return impl_->shape[impl_->checked_axis(axis)];
}

int DeviceMesh::size() const {
  int product = 1;
  for (const int n : impl_->shape) {
    product *= n;
  }
  return product;
}

const std::vector<std::string>& DeviceMesh::axis_names() const {
  return impl_->axis_names;
}

int DeviceMesh::coordinate(int axis) const {
  return impl_->coordinates[impl_->checked_axis(axis)];
}

ProcessGroup DeviceMesh::group(int axis) const {
  return impl_->groups[impl_->checked_axis(axis)];
}

ProcessGroup DeviceMesh::group(std::string_view axis_name) const {
  const auto& names = impl_->axis_names;
  const auto found = std::find(names.begin(), names.end(), axis_name);
  if (found == names.end()) {
    throw UsageError(
        rank_prefix(impl_->rank) + "the device mesh has no axis '" +
        std::string(axis_name) + "'; " +
        (names.empty() ? "its axes are unnamed"
                       : "its axes are " + names_text(names)));
  }
  return impl_->groups[static_cast<std::size_t>(found - names.begin())];
}

DeviceMesh init_device_mesh(
    const ProcessGroup& world,
    std::string device_type,
    std::vector<int> shape,
    std::vector<std::string> axis_names) {
  check_mesh(world, device_type, shape, axis_names);
  auto impl = std::make_shared<DeviceMesh::Impl>();
  impl->device_type = std::move(device_type);
  impl->shape = std::move(shape);
  impl->axis_names = std::move(axis_names);
  impl->rank = world.rank();

  int stride = world.size();
  for (std::size_t axis = 0; axis < impl->shape.size(); ++axis) {
    const int n = impl->shape[axis];
    stride /= n;
    const int coordinate = world.rank() / stride % n;
    impl->coordinates.push_back(coordinate);
    if (n == world.size()) {
      impl->groups.push_back(world);
      continue;
    }
    std::vector<int> members;
    for (int i = 0; i < n; ++i) {
      members.push_back(world.rank() + (i - coordinate) * stride);
    }
    impl->groups.push_back(world.split(
        members,
        impl->axis_names.empty() ? "axis " + std::to_string(axis)
                                 : impl->axis_names[axis]));
  }
  return DeviceMesh(std::move(impl));
}

} // namespace fsdp
