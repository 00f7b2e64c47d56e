#pragma once
// Files that are part of the program. CMake writes their definitions.

#include <string_view>

namespace fsdp::report::embedded {

extern const std::string_view page_html;
extern const std::string_view page_css;
extern const std::string_view page_js;
extern const std::string_view chart_js; ///< Chart.js, minified

} // namespace fsdp::report::embedded
