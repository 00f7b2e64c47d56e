# Finds LibTorch without its own CMake package, which on a CUDA build refuses to
# configure unless a complete CUDA toolkit is installed.
#
#   LIBTORCH          folder with include/ and lib/ (cache, or environment)
#   LibTorch_VERSION  as in include/torch/headeronly/version.h
#   LibTorch::LibTorch  imported target
if(NOT LIBTORCH AND DEFINED ENV{LIBTORCH})
  set(LIBTORCH "$ENV{LIBTORCH}" CACHE PATH "Folder of LibTorch" FORCE)
endif()
if(NOT LIBTORCH)
  file(GLOB _candidates "${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch")
  if(_candidates)
    list(GET _candidates 0 _candidate)
    set(LIBTORCH "${_candidate}" CACHE PATH "Folder of LibTorch" FORCE)
  endif()
endif()
if(NOT LIBTORCH)
  message(FATAL_ERROR "LibTorch was not found: run ./run, which installs it in .venv, or set LIBTORCH to a folder that holds include/ and lib/")
endif()

find_path(LibTorch_INCLUDE_DIR ATen/core/Tensor.h
  PATHS "${LIBTORCH}/include" NO_DEFAULT_PATH NO_CACHE)
foreach(_name torch torch_cpu c10)
  find_library(LibTorch_${_name}_LIBRARY ${_name}
    PATHS "${LIBTORCH}/lib" NO_DEFAULT_PATH NO_CACHE)
endforeach()

set(LibTorch_VERSION "")
foreach(_header torch/headeronly/version.h torch/csrc/api/include/torch/version.h)
  set(_file "${LibTorch_INCLUDE_DIR}/${_header}")
  if(NOT LibTorch_VERSION AND EXISTS "${_file}")
    file(READ "${_file}" _text)
    foreach(_part MAJOR MINOR PATCH)
      string(REGEX MATCH "define TORCH_VERSION_${_part} ([0-9]+)" _match "${_text}")
      list(APPEND _parts "${CMAKE_MATCH_1}")
    endforeach()
    list(JOIN _parts "." LibTorch_VERSION)
  endif()
endforeach()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch
  REQUIRED_VARS LibTorch_INCLUDE_DIR LibTorch_torch_LIBRARY
    LibTorch_torch_cpu_LIBRARY LibTorch_c10_LIBRARY LibTorch_VERSION
  VERSION_VAR LibTorch_VERSION)
if(LibTorch_VERSION VERSION_LESS 2.11 OR LibTorch_VERSION VERSION_GREATER_EQUAL 2.15)
  message(FATAL_ERROR "LibTorch ${LibTorch_VERSION} in ${LIBTORCH} is not supported: 2.11 to 2.14 are accepted, 2.13 is tested")
endif()

if(NOT TARGET LibTorch::LibTorch)
  foreach(_name c10 torch_cpu torch)
    add_library(LibTorch::${_name} SHARED IMPORTED)
    set_target_properties(LibTorch::${_name} PROPERTIES
      IMPORTED_LOCATION "${LibTorch_${_name}_LIBRARY}")
  endforeach()
  add_library(LibTorch::LibTorch INTERFACE IMPORTED)
  target_include_directories(LibTorch::LibTorch SYSTEM INTERFACE
    "${LibTorch_INCLUDE_DIR}" "${LibTorch_INCLUDE_DIR}/torch/csrc/api/include")
  # libtorch.so itself only pulls in the others; --no-as-needed keeps libtorch_cpu,
  # whose static initialisers register every operator.
  target_link_libraries(LibTorch::LibTorch INTERFACE
    -Wl,--no-as-needed LibTorch::torch_cpu LibTorch::torch -Wl,--as-needed
    LibTorch::c10 Threads::Threads)
endif()
