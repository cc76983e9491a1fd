#include <fmt/format.h>

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "command.h"
#include "haulway/load_tensors.h"
#include "haulway/select.h"
#include "output.h"

namespace haulway::cli {
namespace {

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

Result<std::vector<SelectedTensor>> WantedOf(const Options& options,
                                             const Checkpoint& checkpoint) {
  SelectOptions select = {.names = NamesOf(options), .shard = options.shard};
  HAULWAY_ASSIGN(select.slices, SlicesByName(options));
  auto wanted = SelectTensors(checkpoint, select);
  if (!wanted.ok()) return std::move(wanted).status().Of(options.files[0]);
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
  const auto wanted = WantedOf(options, **checkpoint);
  if (!wanted.ok()) {
    const int code = Fail(options, wanted.status());
    const bool is_usage = wanted.status().code() == Code::kInvalidArgument;
    return is_usage ? kUsage : code;
  }
  std::vector<TensorRequest> requests;
  for (const SelectedTensor& one : *wanted) {
    const TensorInfo& tensor =
        (*checkpoint)->index().tensors[one.request.tensor];
    if (tensor.storage != kNoStorage) requests.push_back(one.request);
  }
  const auto plan = PlanTensors(**checkpoint, requests);
  if (!plan.ok()) return Fail(options, plan.status());
  if (options.json) {
    PrintJson(file, *plan);
  } else {
    PrintTable(options, *plan, wanted->size());
  }
  return wanted->empty() ? kNoMatch : kDone;
}

}  // namespace haulway::cli
