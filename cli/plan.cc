#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "command.h"
#include "filter.h"
#include "haulway/load_tensors.h"
#include "output.h"
#include "slice.h"

namespace haulway::cli {
namespace {

struct Wanted {
  std::vector<TensorRequest> requests;
  uint64_t tensors = 0;
};

Status NoTensor(const Options& options, std::string_view name) {
  return Status(Code::kNotFound, fmt::format("no tensor '{}'", Escape(name)))
      .Of(options.files[0]);
}

// The names of --slice with what stands after the last '=': names may hold one,
// slices do not.
Result<std::map<std::string, std::string>> SlicesByName(
    const Options& options) {
  std::map<std::string, std::string> slices;
  for (const std::string& text : options.slices) {
    const size_t at = text.rfind('=');
    if (at == text.npos) {
      return Status(Code::kInvalidArgument,
                    fmt::format("--slice {}: expected NAME=SLICE", text));
    }
    slices[text.substr(0, at)] = text.substr(at + 1);
  }
  return slices;
}

// `*is_usage` is set where it is a slice that is wrong.
Result<Wanted> WantedOf(const Options& options, const Checkpoint& checkpoint,
                        bool* is_usage) {
  auto by_name = SlicesByName(options);
  *is_usage = !by_name.ok();
  if (!by_name.ok()) return std::move(by_name).status();
  // Slices alone mean that nothing else is wanted.
  const bool only_slices =
      !by_name->empty() && options.include.empty() && options.exclude.empty();
  Wanted wanted;
  for (const Entry& entry : checkpoint.entries()) {
    const TensorInfo& tensor = checkpoint.index().tensors[entry.tensor];
    const auto found = by_name->find(std::string(entry.name));
    TensorRequest request;
    request.tensor = entry.tensor;
    if (found != by_name->end()) {
      auto slice = ParseSlice(found->second, tensor.shape);
      *is_usage = !slice.ok();
      if (!slice.ok()) {
        return std::move(slice)
            .status()
            .In(fmt::format("tensor '{}'", Escape(entry.name)))
            .Of(options.files[0]);
      }
      request.slice = std::move(slice->dims);
      by_name->erase(found);
    } else if (only_slices ||
               !Selected(entry.name, options.include, options.exclude)) {
      continue;
    }
    ++wanted.tensors;
    if (tensor.storage != kNoStorage) {
      wanted.requests.push_back(std::move(request));
    }
  }
  if (!by_name->empty()) return NoTensor(options, by_name->begin()->first);
  return wanted;
}

void PrintJson(const std::string& file, const PlannedReads& plan) {
  Json json;
  json.Begin('{').Key("file").Text(file).Key("reads").Begin('[');
  for (const PlannedRead& read : plan.reads) {
    json.Begin('{').Key("offset").Number(read.offset);
    json.Key("bytes").Number(read.bytes).End('}');
  }
  json.End(']').Key("tensor_bytes").Number(plan.tensor_bytes);
  json.Key("read_bytes").Number(plan.read_bytes).End('}').Print();
}

void PrintTable(const Options& options, const PlannedReads& plan,
                uint64_t tensors) {
  Table table(">>>>");
  table.Add({"read", "offset", "bytes", "hole before"});
  uint64_t end = 0;
  for (size_t i = 0; i < plan.reads.size(); ++i) {
    const PlannedRead& read = plan.reads[i];
    const uint64_t hole = read.offset > end && i > 0 ? read.offset - end : 0;
    table.Add({std::to_string(i), std::to_string(read.offset),
               Size(read.bytes, options.bytes),
               hole == 0 ? "-" : Size(hole, options.bytes)});
    end = read.offset + read.bytes;
  }
  table.Print();
  // What two tensors share is read once, so that less may be read than asked.
  const uint64_t over = plan.read_bytes > plan.tensor_bytes
                            ? plan.read_bytes - plan.tensor_bytes
                            : 0;
  fmt::print("{} tensors, {}; {} reads, {}, of which {} is not asked for\n",
             tensors, Size(plan.tensor_bytes, options.bytes), plan.reads.size(),
             Size(plan.read_bytes, options.bytes), Size(over, options.bytes));
}

}  // namespace

int PlanFile(const Options& options) {
  const std::string& file = options.files.front();
  Result<std::shared_ptr<const ByteSource>> source = OpenInput(file);
  if (!source.ok()) return Fail(options, source.status());
  const auto checkpoint = Checkpoint::Open(*source, options.open);
  if (!checkpoint.ok()) return Fail(options, checkpoint.status());
  bool is_usage = false;
  const auto wanted = WantedOf(options, **checkpoint, &is_usage);
  if (!wanted.ok()) {
    const int code = Fail(options, wanted.status());
    return is_usage ? kUsage : code;
  }
  const auto plan = PlanTensors(**checkpoint, wanted->requests);
  if (!plan.ok()) return Fail(options, plan.status());
  if (options.json) {
    PrintJson(file, *plan);
  } else {
    PrintTable(options, *plan, wanted->tensors);
  }
  return wanted->tensors == 0 ? kNoMatch : kDone;
}

}  // namespace haulway::cli
