#include "field_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <system_error>
#include <utility>

#include "command.h"

namespace haulway::cli {

namespace {

std::string OptionName(std::string_view field, std::string_view flag) {
  if (!flag.empty()) return std::string(flag);
  std::string name = "--" + std::string(field);
  std::ranges::replace(name, '_', '-');
  return name;
}

std::string Sentence(std::string_view meaning) {
  std::string text(meaning);
  if (text.empty()) return text;
  text[0] =
      static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
  return text;
}

// Returns "256MiB", or the number if it is not a multiple of a unit.
std::string ShownSize(uint64_t bytes) {
  for (const auto& [unit, name] :
       {std::pair(kGiB, "GiB"), {kMiB, "MiB"}, {kKiB, "KiB"}}) {
    if (bytes % unit == 0) return fmt::format("{}{}", bytes / unit, name);
  }
  return std::to_string(bytes);
}

}  // namespace

FieldOption::FieldOption(CLI::App& app, std::string_view name,
                         std::string_view meaning, const Option& option)
    : app_(app),
      name_(OptionName(name, option.flag)),
      meaning_(meaning),
      option_(option) {}

void FieldOption::Add(bool* value) const {
  if (option_.off_meaning.empty()) {
    app_.add_flag(name_, *value, About(""));
    return;
  }
  app_.add_flag_callback(
      name_, [value] { *value = false; }, Sentence(option_.off_meaning));
}

void FieldOption::Add(int* value) const {
  AddText(
      [value, *this](const std::string& text) {
        *value = static_cast<int>(NumberOf(text));
      },
      "NUMBER", *value == 0 ? "" : std::to_string(*value));
}

void FieldOption::Add(uint64_t* value) const {
  const bool is_size = option_.unit == Quantity::kBytes;
  const std::string now = is_size ? ShownSize(*value) : std::to_string(*value);
  AddText(
      [value, is_size, *this](const std::string& text) {
        *value = is_size ? SizeOf(text) : NumberOf(text);
      },
      is_size ? "SIZE" : "NUMBER", *value == 0 ? "" : now);
}

void FieldOption::Add(std::optional<uint64_t>* value) const {
  AddText([value, *this](const std::string& text) { *value = NumberOf(text); },
          "NUMBER", "");
}

void FieldOption::Add(double* value) const {
  app_.add_option(name_, *value, About(""))->check([](const std::string& text) {
    char* end = nullptr;
    const bool is_right = std::strtod(text.c_str(), &end) >= 0 &&
                          end != text.c_str() && *end == '\0';
    return is_right ? "" : "expected a number of 0 or more: " + text;
  });
}

void FieldOption::Add(std::chrono::milliseconds* value) const {
  const std::string now =
      value->count() == 0
          ? ""
          : fmt::format("{}", static_cast<double>(value->count()) / 1000);
  app_.add_option_function<double>(
          name_,
          [value](const double& seconds) {
            *value =
                std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
          },
          About(now))
      ->check(CLI::Range(0.001, 1e6))
      ->type_name("SECONDS");
}

void FieldOption::Add(std::string* value) const {
  CLI::Option* const added = app_.add_option(name_, *value, About(""));
  if (!option_.value_name.empty()) {
    added->type_name(std::string(option_.value_name));
  }
}

void FieldOption::Add(std::vector<std::string>* value) const {
  CLI::Option* const added =
      app_.add_option(name_, *value, About("") + "; repeatable")->expected(1);
  added->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  if (!option_.value_name.empty()) {
    added->type_name(std::string(option_.value_name));
  }
}

void FieldOption::Add(Strictness* value) const {
  app_.add_flag_callback(
      name_, [value] { *value = Strictness::kLenient; }, About(""));
}

void FieldOption::AddWords(std::span<const std::string_view> words, size_t now,
                           std::function<void(size_t)> set) const {
  if (!option_.off_meaning.empty()) {
    app_.add_flag_callback(
        name_, [last = words.size() - 1, set = std::move(set)] { set(last); },
        Sentence(option_.off_meaning));
    return;
  }
  CLI::Option* const added = AddText(
      [words, set = std::move(set), *this](const std::string& text) {
        const auto found = std::ranges::find(words, text);
        if (found == words.end()) {
          Refuse(fmt::format("{} or {}",
                             fmt::join(words.first(words.size() - 1), ", "),
                             words.back()),
                 text);
        }
        set(static_cast<size_t>(found - words.begin()));
      },
      "WORD", std::string(words[now]));
  Offer(added, {words.begin(), words.end()});
}

CLI::Option* FieldOption::AddText(std::function<void(const std::string&)> take,
                                  const std::string& value_name,
                                  const std::string& now) const {
  return app_
      .add_option_function<std::string>(name_, std::move(take), About(now))
      ->type_name(option_.value_name.empty() ? value_name
                                             : std::string(option_.value_name));
}

std::string FieldOption::About(const std::string& now) const {
  return Sentence(meaning_) + (now.empty() ? "" : "; default: " + now);
}

void FieldOption::Refuse(const std::string& expected,
                         const std::string& found) const {
  throw CLI::ValidationError(
      name_, fmt::format("expected {}, found {}", expected, found));
}

uint64_t FieldOption::NumberOf(const std::string& text) const {
  uint64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  const bool is_wrong = error != std::errc() || rest != end ||
                        number < option_.least || number > option_.most;
  if (option_.unit == Quantity::kAlignment) {
    if (is_wrong || (number & (number - 1)) != 0) {
      Refuse(fmt::format("a power of two up to {}", option_.most), text);
    }
  } else if (is_wrong) {
    Refuse(fmt::format("a number from {} to {}", option_.least, option_.most),
           text);
  }
  return number;
}

uint64_t FieldOption::SizeOf(const std::string& text) const {
  const std::optional<uint64_t> size = ParseSize(text);
  if (!size.has_value() || *size < option_.least) {
    Refuse("a size like 5GB or 512MiB", text);
  }
  return *size;
}

}  // namespace haulway::cli
