#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "base/ascii.h"
#include "base/text.h"
#include "checkpoint/format_registry.h"
#include "haulway/format.h"
#include "haulway/nearest.h"
#include "haulway/save.h"

namespace haulway {

namespace {

// Suffixes of other formats. A suffix in a format's row takes precedence.
constexpr std::pair<std::string_view, std::string_view> kOtherFormats[] = {
    {".ggml", "GGML"},
    {".h5", "HDF5"},
    {".hdf5", "HDF5"},
    {".keras", "Keras"},
    {".onnx", "ONNX"},
    {".pb", "protobuf"},
    {".tflite", "TensorFlow Lite"},
    {".msgpack", "msgpack"},
    {".arrow", "Arrow"},
    {".parquet", "Parquet"},
    {".pkl", "pickle"},
    {".pickle", "pickle"},
    {".joblib", "joblib"},
    {".pt2", "torch.export"},
    {".json", "JSON"},
    {".zip", "zip"},
    {".tar", "tar"},
};

std::string Suffix(std::string_view path) {
  path = path.substr(path.find_last_of('/') + 1);
  const size_t dot = path.find_last_of('.');
  // A leading dot does not begin a suffix.
  if (dot == path.npos || dot == 0) return {};
  return LowerCase(path.substr(dot));
}

std::string WrittenEndings() {
  std::string endings;
  for (const FormatEntry& format : Formats()) {
    if (format.lay_out == nullptr) continue;
    for (const std::string_view suffix : format.suffixes) {
      endings += fmt::format("{}{}", endings.empty() ? "" : " ", suffix);
    }
  }
  return endings;
}

// Returns "; did you mean '.npz'?" for a suffix that is nearly that of another
// format than torch's, whose files have suffixes of all kinds; else "".
std::string MisspelledSuffix(std::string_view path) {
  const std::string suffix = Suffix(path);
  const auto is_number = [](char c) { return c >= '0' && c <= '9'; };
  if (std::ranges::any_of(suffix, is_number)) return {};
  NearestName nearest(suffix);
  for (const FormatEntry& format : Formats()) {
    for (const std::string_view known : format.suffixes) {
      nearest.Consider(known);
    }
  }
  const FormatEntry* const meant = FormatBySuffix("x" + nearest.name());
  return meant == nullptr || meant->id == Format::kTorch ? "" : nearest.hint();
}

}  // namespace

std::string_view ForeignBySuffix(std::string_view path) {
  const std::string suffix = Suffix(path);
  for (const auto& [known, name] : kOtherFormats) {
    if (suffix == known) return name;
  }
  return {};
}

Result<Format> FormatOfEnding(std::string_view path) {
  if (const auto only = OnlyFormatOf(path)) return *only;
  const FormatEntry* entry = FormatBySuffix(path);
  if (entry != nullptr && entry->lay_out != nullptr) return entry->id;
  const std::string_view name =
      entry != nullptr ? entry->name : ForeignBySuffix(path);
  if (name.empty()) {
    return Status(
        Code::kInvalidArgument,
        fmt::format("{} has no suffix of a writable format: expected "
                    "one of {}, or the name of a format{}",
                    QuotePath(path), WrittenEndings(), MisspelledSuffix(path)));
  }
  return Status(
      Code::kUnsupported,
      fmt::format("{} has the suffix of {} files, which cannot be "
                  "written: expected another suffix, or the name of a format",
                  QuotePath(path), name));
}

Result<Format> FormatToWrite(std::string_view path) {
  if (FormatBySuffix(path) == nullptr && ForeignBySuffix(path).empty() &&
      !OnlyFormatOf(path).has_value() && MisspelledSuffix(path).empty()) {
    return Format::kTorch;
  }
  return FormatOfEnding(path);
}

Status CheckEnding(std::string_view path, Format format) {
  if (OnlyFormatOf(path).has_value()) return Status();  // It has no suffix.
  const FormatEntry* entry = FormatBySuffix(path);
  if (entry != nullptr && entry->id == format) return Status();
  const std::string_view other =
      entry != nullptr ? entry->name : ForeignBySuffix(path);
  if (other.empty()) return Status();
  return Status(
      Code::kUnsupported,
      fmt::format("{} has the suffix of {} files, but would be written as {}",
                  QuotePath(path), other, Name(format)));
}

Result<Format> FormatToWriteByName(std::string_view name) {
  std::string names;
  for (const FormatEntry& format : Formats()) {
    if (format.lay_out == nullptr) continue;
    if (format.name == name) return format.id;
    names += fmt::format("{}'{}'", names.empty() ? "" : " or ", format.name);
  }
  return Status(
      Code::kUnsupported,
      fmt::format("format {} is not written: expected {}", Quote(name), names));
}

}  // namespace haulway
