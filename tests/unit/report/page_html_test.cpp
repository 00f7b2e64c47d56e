#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "report/page.h"

namespace fsdp::report {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kNasty =
    "</script><script>alert(1)</script><!-- \"'& {{data}} \xff";

Page nasty_page() {
  Page page;
  page.title = kNasty;
  page.facts = {{kNasty, kNasty}};
  page.notes = {kNasty};
  Chart chart;
  chart.id = "a";
  chart.title = kNasty;
  chart.text = kNasty;
  chart.x.labels = {kNasty};
  chart.series = {{.name = kNasty, .values = {1.5}}};
  chart.table = {{kNasty, kNasty}, {{kNasty, kNasty}}};
  page.charts = {chart};
  return page;
}

Page plain_page() {
  Page page;
  page.title = "a";
  return page;
}

std::string data_of(const std::string& html) {
  const std::string open = "id=\"data\">";
  const std::size_t begin = html.find(open) + open.size();
  return html.substr(begin, html.find("</script>", begin) - begin);
}

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos;
       at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

TEST(PageHtml, KeepsNamesFromBreakingOut) {
  const std::string html = html_of(nasty_page());
  const std::string plain = html_of(plain_page());
  EXPECT_THAT(html, Not(HasSubstr("<script>alert")));
  EXPECT_EQ(count_of(html, "</script"), count_of(plain, "</script"));
  EXPECT_EQ(count_of(html, "<script"), count_of(plain, "<script"));
  EXPECT_EQ(count_of(html, "<!--"), count_of(plain, "<!--"));
  // A name that looks like the template's own words is a name.
  EXPECT_THAT(html, HasSubstr("&#39;&amp; {{data}}"));
}

TEST(PageHtml, TellsTheChartsWhatTheyAreTold) {
  const auto data = nlohmann::json::parse(data_of(html_of(nasty_page())));
  const std::string name = data[0]["series"][0]["name"];
  EXPECT_EQ(
      name,
      std::string(kNasty).substr(0, std::string(kNasty).size() - 1) +
          "\xef\xbf\xbd");
  EXPECT_EQ(data[0]["series"][0]["values"][0], 1.5);
}

TEST(PageHtml, WritesWhatIsNoNumberAsNull) {
  Page page;
  Chart chart;
  chart.id = "a";
  chart.series = {
      {.name = "s", .values = {std::numeric_limits<double>::quiet_NaN()}}};
  page.charts = {chart};
  const auto data = nlohmann::json::parse(data_of(html_of(page)));
  EXPECT_TRUE(data[0]["series"][0]["values"][0].is_null());
}

TEST(PageHtml, IsTheSameForTheSame) {
  EXPECT_EQ(html_of(nasty_page()), html_of(nasty_page()));
}

TEST(PageHtml, HoldsItsLibraryAndAsksForNothing) {
  const std::string html = html_of(plain_page());
  EXPECT_THAT(html, HasSubstr("Chart.js v3."));
  EXPECT_THAT(html, HasSubstr("default-src 'none'"));
  EXPECT_THAT(html, Not(HasSubstr(" src=")));
  EXPECT_THAT(html, Not(HasSubstr("@import")));
}

} // namespace
} // namespace fsdp::report
