#include <fmt/format.h>

#include <charconv>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "command.h"
#include "haulway/load.h"
#include "haulway/select.h"
#include "no_match.h"
#include "output.h"
#include "signature.h"

namespace haulway::cli {
namespace {

struct PlanOptions : Options {
  std::vector<std::string> slices;  // NAME=SLICE.
  std::optional<ShardOptions> shard;
};

// Returns the slices by name. The last '=' separates them: names may contain
// one, slices do not.
Result<std::map<std::string, std::string>> SlicesByName(
    const PlanOptions& options) {
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

Result<std::vector<SelectedTensor>> WantedOf(const PlanOptions& options,
                                             const Checkpoint& checkpoint) {
  SelectOptions select = {.names = NamesOf(options), .shard = options.shard};
  HAULWAY_ASSIGN(select.slices, SlicesByName(options));
  auto wanted = SelectTensors(checkpoint, select);
  if (!wanted.ok())
    return std::move(wanted).status().Of(ShownName(options.files[0]));
  return wanted;
}

void PrintJson(const std::string& file, const PlannedReads& plan) {
  Json json;
  json.Begin('{').Key("file").Text(ShownName(file)).Key("reads").Begin('[');
  for (const PlannedRead& read : plan.reads) {
    json.Begin('{').Key("offset").Number(read.offset);
    json.Key("bytes").Number(read.bytes).End('}');
  }
  json.End(']').Key("tensor_bytes").Number(plan.tensor_bytes);
  json.Key("read_bytes").Number(plan.read_bytes).End('}').Print();
}

void PrintTable(const PlanOptions& options, const PlannedReads& plan,
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
  // Bytes that two tensors share are read once, so fewer may be read than
  // requested.
  const uint64_t over = plan.read_bytes > plan.tensor_bytes
                            ? plan.read_bytes - plan.tensor_bytes
                            : 0;
  fmt::print("{}, {}; {}, {}, of which {} is not asked for\n",
             Counted(tensors, "tensor"), Size(plan.tensor_bytes, options.bytes),
             Counted(plan.reads.size(), "read"),
             Size(plan.read_bytes, options.bytes), Size(over, options.bytes));
}

int PlanFile(const PlanOptions& options) {
  const std::string& file = options.files.front();
  Result<std::shared_ptr<const ByteSource>> source = OpenModel(options, file);
  if (!source.ok()) return Fail(options, source.status());
  const auto checkpoint = OpenChosen(*source, options.open, options);
  if (!checkpoint.ok()) return Fail(options, checkpoint.status());
  const Status compared = CompareSigned(SignatureScope::kRead);
  if (!compared.ok()) return Fail(options, compared);
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
  return wanted->empty() ? NoMatch(file) : kDone;
}

// Parses RANK/WORLD or RANK/WORLD/DIM.
std::optional<ShardOptions> ParseShard(const std::string& text) {
  ShardOptions shard;
  const char* at = text.data();
  const char* const end = at + text.size();
  int read = 0;
  for (int64_t* number : {&shard.rank, &shard.world, &shard.dim}) {
    const auto [rest, error] = std::from_chars(at, end, *number);
    if (error != std::errc()) return std::nullopt;
    ++read;
    at = rest;
    if (at == end) break;
    if (*at++ != '/') return std::nullopt;
  }
  if (at != end || read < 2 || !CheckShard(shard).ok()) return std::nullopt;
  return shard;
}

Runner AddPlan(CLI::App& app) {
  const auto options = MakeOptions<PlanOptions>(app);
  AddBytes(app, *options);
  AddList(app, "--slice", options->slices,
          "NAME=SLICE: read only this part of a tensor; repeatable");
  app.add_option_function<std::string>(
         "--shard",
         [&shard = options->shard](const std::string& text) {
           shard = ParseShard(text);
           if (shard.has_value()) return;
           throw CLI::ValidationError(
               "--shard",
               "expected RANK/WORLD or RANK/WORLD/DIM, found " + text);
         },
         "RANK/WORLD[/DIM]: read only this part of each tensor; default of "
         "DIM: 0")
      ->type_name("PART");
  AddFilters(app, *options);
  AddAllow(app, *options);
  AddModel(app, *options);
  return {options, [options] { return PlanFile(*options); }};
}

}  // namespace

// In Python, this is plan_reads(); plan() there lays out a file to save.
extern const Verb kPlan = {
    "plan-reads",
    "Show the reads that loading would make, without making them; short form: "
    "`plan`",
    "haulway plan-reads model.pt --include 'layers.0.*'\n"
    "haulway plan-reads model.pt --slice layer.0.weight=0:128,: --json\n"
    "haulway plan-reads model.pt --shard 1/8",
    AddPlan,
    /*cancels=*/false,
    /*alias=*/"plan"};

}  // namespace haulway::cli
