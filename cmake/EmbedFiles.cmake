# cmake -DFILES="name=path;..." -DOUTPUT=file.cpp -P EmbedFiles.cmake
# Writes the definitions that src/report/embedded.h declares.
set(_text "#include \"report/embedded.h\"\n\nnamespace fsdp::report::embedded {\n")
foreach(_file IN LISTS FILES)
  string(REGEX MATCH "^([^=]+)=(.*)$" _ "${_file}")
  set(_name "${CMAKE_MATCH_1}")
  file(READ "${CMAKE_MATCH_2}" _content)
  string(FIND "${_content}" ")fsdp_embedded\"" _end)
  string(LENGTH "${_content}" _length)
  if(NOT _end EQUAL -1 OR _length EQUAL 0)
    message(FATAL_ERROR "${CMAKE_MATCH_2} is empty or cannot be embedded")
  endif()
  string(APPEND _text
    "extern const std::string_view ${_name};\n"
    "const std::string_view ${_name} = R\"fsdp_embedded(${_content})fsdp_embedded\";\n")
endforeach()
string(APPEND _text "} // namespace fsdp::report::embedded\n")
file(WRITE "${OUTPUT}" "${_text}")
