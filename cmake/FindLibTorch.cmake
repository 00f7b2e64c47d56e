# Finds LibTorch without its own CMake package, which on a CUDA build refuses to
# configure unless a complete CUDA toolkit is installed. Installed beside the
# package's configuration, for those who link the library.
#
#   LIBTORCH          folder with include/ and lib/ (cache, or environment);
#                     otherwise found through CMAKE_PREFIX_PATH, whose entries may
#                     be that folder, its share/cmake or a Python environment,
#                     or in the project's .venv
#   LibTorch_VERSION  as in include/torch/headeronly/version.h
#   LibTorch::LibTorch  imported target
if(NOT LIBTORCH AND DEFINED ENV{LIBTORCH})
  set(LIBTORCH "$ENV{LIBTORCH}" CACHE PATH "Folder of LibTorch" FORCE)
endif()
if(NOT LIBTORCH)
  cmake_path(CONVERT "$ENV{CMAKE_PREFIX_PATH}" TO_CMAKE_PATH_LIST _prefixes)
  foreach(_prefix IN LISTS CMAKE_PREFIX_PATH _prefixes ITEMS "${PROJECT_SOURCE_DIR}/.venv")
    file(GLOB _wheels "${_prefix}/lib/python3*/site-packages/torch")
    foreach(_folder IN ITEMS "${_prefix}" "${_prefix}/../.." LISTS _wheels)
      if(NOT LIBTORCH AND EXISTS "${_folder}/include/ATen/core/Tensor.h")
        get_filename_component(_folder "${_folder}" ABSOLUTE)
        set(LIBTORCH "${_folder}" CACHE PATH "Folder of LibTorch" FORCE)
      endif()
    endforeach()
  endforeach()
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
  VERSION_VAR LibTorch_VERSION
  REASON_FAILURE_MESSAGE "set LIBTORCH to a folder that holds include/ and lib/, or name one in CMAKE_PREFIX_PATH (in libfsdp's own tree ./run installs one)")
if(NOT LibTorch_FOUND)
  return()
endif()
if(LibTorch_VERSION VERSION_LESS 2.11 OR LibTorch_VERSION VERSION_GREATER_EQUAL 2.15)
  message(FATAL_ERROR "LibTorch ${LibTorch_VERSION} in ${LIBTORCH} is not supported: 2.11 to 2.14 are accepted, 2.13 is tested")
endif()

# GLOBAL, so that a project that adds this one as a folder sees them too.
if(NOT TARGET LibTorch::LibTorch)
  foreach(_name c10 torch_cpu torch)
    add_library(LibTorch::${_name} SHARED IMPORTED GLOBAL)
    set_target_properties(LibTorch::${_name} PROPERTIES
      IMPORTED_LOCATION "${LibTorch_${_name}_LIBRARY}")
  endforeach()
  add_library(LibTorch::LibTorch INTERFACE IMPORTED GLOBAL)
  target_include_directories(LibTorch::LibTorch SYSTEM INTERFACE
    "${LibTorch_INCLUDE_DIR}" "${LibTorch_INCLUDE_DIR}/torch/csrc/api/include")
  # libtorch.so itself only pulls in the others; --no-as-needed keeps libtorch_cpu,
  # whose static initialisers register every operator.
  target_link_libraries(LibTorch::LibTorch INTERFACE
    -Wl,--no-as-needed LibTorch::torch_cpu LibTorch::torch -Wl,--as-needed
    LibTorch::c10 Threads::Threads)
endif()
