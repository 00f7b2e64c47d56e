#include "train/console.h"

#include <array>
#include <cmath>
#include <cstdarg>
#include <cstdio>

namespace fsdp {
namespace {

constexpr auto kLineEvery = std::chrono::seconds(5);
constexpr auto kRedrawEvery = std::chrono::milliseconds(100);

[[gnu::format(printf, 1, 2)]] std::string text(const char* format, ...) {
  std::array<char, 512> buffer{};
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(buffer.data(), buffer.size(), format, arguments);
  va_end(arguments);
  return buffer.data();
}

double megabytes(std::int64_t bytes) {
  return static_cast<double>(bytes) / 1e6;
}

std::string share_line(const char* name, double seconds, double total) {
  return text(
      "  %-10s %8.2f s  %5.1f %%\n", name, seconds, 100 * seconds / total);
}

std::string describe_memory(const std::vector<MemoryReport>& by_rank) {
  std::string result = "peak tensor bytes by rank:";
  for (const MemoryReport& report : by_rank) {
    result += text(" %.1f MB", megabytes(report.total.peak));
  }
  result += "\nat rank 0's peak, in MB:";
  for (std::size_t i = 0; i < kNumMemoryComponents; ++i) {
    const std::string name(name_of(static_cast<MemoryComponent>(i)));
    result += text(
        "%s %s %.1f",
        i == 0 ? "" : ",",
        name.c_str(),
        megabytes(by_rank.front().components[i].at_total_peak));
  }
  return result + "\n";
}

} // namespace

std::string describe(const StepMetrics& metrics) {
  const auto left = static_cast<long>(std::ceil(metrics.seconds_left));
  return text(
             "step %ld  loss %.4f  norm %.3f  %.0f tok/s  peak %.1f MB  "
             "%ld:%02ld left",
             static_cast<long>(metrics.step),
             metrics.loss,
             metrics.grad_norm,
             metrics.tokens_per_s,
             megabytes(metrics.peak_tensor_bytes),
             left / 60,
             left % 60) +
         (metrics.skipped ? "  skipped: not finite" : "");
}

std::string describe(const TrainSummary& summary) {
  std::string result = text(
      "trained %ld steps, %ld tokens in %.1f s: %.0f tok/s, last loss %.4f\n",
      static_cast<long>(summary.num_steps),
      static_cast<long>(summary.num_tokens),
      summary.seconds,
      summary.tokens_per_s(),
      summary.loss);
  if (summary.num_skipped > 0) {
    result += text(
        "skipped %ld steps that were not finite\n",
        static_cast<long>(summary.num_skipped));
  }
  result += describe_memory(summary.memory);
  result += "time of rank 0:\n";
  const double total = summary.seconds;
  result += share_line("compute", summary.compute_seconds(), total);
  result += share_line("waiting", summary.wait_seconds, total);
  result += share_line("reduction", summary.reduce_seconds, total);
  result += share_line("optimizer", summary.optim_seconds, total);
  if (summary.validation_seconds + summary.sample_seconds > 0) {
    result += text(
        "beside it: validation %.1f s, sample %.1f s\n",
        summary.validation_seconds,
        summary.sample_seconds);
  }
  if (summary.validation_loss) {
    result += text("validation loss %.4f", *summary.validation_loss);
    if (summary.trigram_loss) {
      const bool below = *summary.validation_loss < *summary.trigram_loss;
      result += text(
          " nats per byte, %s a trigram table's %.4f (bigram %.4f)",
          below ? "below" : "NOT below",
          *summary.trigram_loss,
          *summary.bigram_loss);
    }
    result += "\n";
  }
  return result;
}

std::string printable(const std::string& raw) {
  std::string result;
  for (const char c : raw) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = (byte >= 0x20 && byte < 0x7f) || c == '\n' || c == '\t';
    result += plain ? std::string(1, c) : text("\\x%02x", byte);
  }
  return result;
}

void Console::on_start(const RunHeader& header) {
  out_ << header.model << "\ndata: " << header.data << "\n"
       << header.ranks << "\nsettings: " << header.settings << std::endl;
}

void Console::on_step(const StepMetrics& metrics) {
  const auto now = std::chrono::steady_clock::now();
  const auto every = style_ == Style::kLiveLine
                         ? std::chrono::steady_clock::duration(kRedrawEvery)
                         : std::chrono::steady_clock::duration(kLineEvery);
  const bool due = !last_line_ || now - *last_line_ >= every ||
                   metrics.progress >= 1 || metrics.skipped;
  if (!due) {
    return;
  }
  last_line_ = now;
  if (style_ == Style::kLines) {
    out_ << describe(metrics) << std::endl;
    return;
  }
  out_ << "\r" << describe(metrics) << "\x1b[K" << std::flush;
  has_live_line_ = true;
  if (metrics.skipped || metrics.progress >= 1) {
    keep_live_line();
  }
}

void Console::keep_live_line() {
  if (has_live_line_) {
    out_ << "\n";
    has_live_line_ = false;
  }
}

void Console::on_validation(std::int64_t step, double loss) {
  keep_live_line();
  out_ << text("step %ld  validation loss %.4f", static_cast<long>(step), loss)
       << std::endl;
}

void Console::on_sample(const std::string& prompt, const std::string& sample) {
  keep_live_line();
  out_ << "sample, after the prompt '" << printable(prompt) << "':\n"
       << printable(prompt + sample) << std::endl;
}

void Console::on_end(const TrainSummary& summary) {
  keep_live_line();
  out_ << describe(summary) << std::flush;
}

} // namespace fsdp
