# fsdp_warnings: linked PRIVATE by our own targets, so that consumers keep theirs.
add_library(fsdp_warnings INTERFACE)
target_compile_options(fsdp_warnings INTERFACE
  -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual
  $<$<BOOL:${FSDP_WARNINGS_AS_ERRORS}>:-Werror>)
