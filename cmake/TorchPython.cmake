# FSDP_PYTHON: the Python with torch and safetensors that tests compare with. By
# default that of the environment which LIBTORCH lies in, else the one that ./run
# makes. Without it those tests fail; they are not skipped.
if(NOT FSDP_PYTHON)
  get_filename_component(FSDP_PYTHON "${LIBTORCH}/../../../../bin/python3" ABSOLUTE)
  if(NOT EXISTS "${FSDP_PYTHON}")
    set(FSDP_PYTHON "${PROJECT_SOURCE_DIR}/.venv/bin/python3")
  endif()
endif()
set(_modules "import importlib.util as u, sys; sys.exit(not (u.find_spec('torch') and u.find_spec('safetensors')))")
execute_process(COMMAND "${FSDP_PYTHON}" -c "${_modules}"
  RESULT_VARIABLE _status OUTPUT_QUIET ERROR_QUIET)
if(NOT _status EQUAL 0)
  message(WARNING "FSDP_PYTHON=${FSDP_PYTHON} is no Python with torch and safetensors: the tests that compare with PyTorch will fail; ./run test installs one")
endif()
