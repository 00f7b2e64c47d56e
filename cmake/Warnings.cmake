# fsdp_warnings: linked PRIVATE by our own targets, so that consumers keep theirs.
# g++ 12 sees overlapping copies in "text" + std::string (GCC bug 105651).
add_library(fsdp_warnings INTERFACE)
target_compile_options(fsdp_warnings INTERFACE
  -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual
  $<$<AND:$<CXX_COMPILER_ID:GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Wno-restrict>
  $<$<BOOL:${FSDP_WARNINGS_AS_ERRORS}>:-Werror>)
