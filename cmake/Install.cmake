# What `cmake --install` puts below its prefix. No installed file names a folder
# of the machine that built it: LibTorch is not part of the package and is found
# again by those who use it, unless FSDP_LIBTORCH_RPATH says where it will be.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(FSDP_LIBTORCH_RPATH "" CACHE STRING
  "Folder of libtorch.so that installed files look in; may begin with $ORIGIN")
set(_package "${CMAKE_INSTALL_LIBDIR}/cmake/fsdp")

if(FSDP_BUILD_PROGRAM)
  set_target_properties(fsdp_cli PROPERTIES INSTALL_RPATH "${FSDP_LIBTORCH_RPATH}")
  install(TARGETS fsdp_cli RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
endif()
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}")
if(NOT FSDP_WITH_TORCH)
  return()
endif()

set_target_properties(fsdp PROPERTIES INSTALL_RPATH "${FSDP_LIBTORCH_RPATH}")
install(TARGETS fsdp EXPORT fsdpTargets
  LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}"
  ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}"
  FILE_SET HEADERS DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(EXPORT fsdpTargets NAMESPACE fsdp:: DESTINATION "${_package}")

configure_file("${PROJECT_SOURCE_DIR}/cmake/fsdpConfig.cmake.in" fsdpConfig.cmake @ONLY)
# Before 1.0 each minor version may change the interface.
write_basic_package_version_file("${CMAKE_CURRENT_BINARY_DIR}/fsdpConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES
  "${CMAKE_CURRENT_BINARY_DIR}/fsdpConfig.cmake"
  "${CMAKE_CURRENT_BINARY_DIR}/fsdpConfigVersion.cmake"
  "${PROJECT_SOURCE_DIR}/cmake/FindLibTorch.cmake"
  DESTINATION "${_package}")
