include(GoogleTest)

# add_fsdp_test(<name> SOURCES f.cpp... LIBS target...
#               [LABELS l...] [TIMEOUT s] [PROCESSORS n] [SPLIT])
# One GoogleTest program and one CTest entry named <name>; with SPLIT one entry
# for each test case (worth it where a case is slow or ends the process).
function(add_fsdp_test name)
  cmake_parse_arguments(T "SPLIT" "TIMEOUT;PROCESSORS" "SOURCES;LIBS;LABELS" ${ARGN})
  if(NOT T_TIMEOUT)
    set(T_TIMEOUT 120)
  endif()
  set(_environment OMP_NUM_THREADS=1)
  if(FSDP_SANITIZE)
    math(EXPR T_TIMEOUT "4 * ${T_TIMEOUT}")
    list(APPEND _environment
      "LSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/sanitizers/leaks.supp:print_suppressions=0")
  endif()
  if(NOT T_PROCESSORS)
    set(T_PROCESSORS 1)
  endif()
  add_executable(${name} ${T_SOURCES})
  # Half the time to compile, and no test measures its own code.
  target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1>)
  target_include_directories(${name} PRIVATE
    "${PROJECT_SOURCE_DIR}/src" "${PROJECT_SOURCE_DIR}/tests")
  target_link_libraries(${name} PRIVATE ${T_LIBS} GTest::gmock GTest::gtest_main fsdp_warnings)
  if(T_SPLIT)
    # A list would be taken apart here; these tests need no more.
    gtest_discover_tests(${name} TEST_PREFIX "${name}." DISCOVERY_TIMEOUT 60
      PROPERTIES TIMEOUT ${T_TIMEOUT} PROCESSORS ${T_PROCESSORS}
        LABELS "${T_LABELS}" ENVIRONMENT OMP_NUM_THREADS=1)
  else()
    add_test(NAME ${name} COMMAND ${name})
    set_tests_properties(${name} PROPERTIES TIMEOUT ${T_TIMEOUT}
      PROCESSORS ${T_PROCESSORS} LABELS "${T_LABELS}" ENVIRONMENT "${_environment}")
  endif()
endfunction()
