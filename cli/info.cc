#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_set>
#include <vector>

#include "command.h"
#include "output.h"
#include "run_command.h"
#include "signature.h"

namespace haulway::cli {
namespace {

// Returns the Python name of a value other than a tensor; empty for other
// kinds.
std::string_view PythonName(Kind kind) {
  switch (kind) {
    case Kind::kNone:
      return "None";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
    case Kind::kBigInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kComplex:
      return "complex";
    case Kind::kString:
    case Kind::kRawString:
      return "str";
    case Kind::kBytes:
      return "bytes";
    case Kind::kByteArray:
      return "bytearray";
    default:
      return {};
  }
}

// Counts the values of each type in the object, without tensors. Arguments that
// objects were made from do not count; attributes do.
std::map<std::string_view, uint64_t> CountValues(const Value& root) {
  std::map<std::string_view, uint64_t> counts;
  std::vector<Value> pending = {root};
  std::unordered_set<const void*> visited;
  while (!pending.empty()) {
    const Value value = pending.back();
    pending.pop_back();
    const std::string_view name = PythonName(value.kind());
    if (!name.empty()) {
      ++counts[name];
      continue;
    }
    if (value.is(Kind::kPersistent) || value.is(Kind::kGlobal) ||
        !visited.insert(value.identity()).second) {
      continue;
    }
    if (value.is_sequence()) {
      const auto items = value.sequence().items();
      pending.insert(pending.end(), items.begin(), items.end());
    } else if (value.is_mapping()) {
      for (const MappingItem& item : value.mapping().items()) {
        pending.push_back(item.value);
      }
    } else if (value.is(Kind::kObject)) {
      const Object& object = value.object();
      if (object.tensor == Object::kNoTensor && object.state.is_mapping()) {
        pending.push_back(object.state);
      }
    }
  }
  return counts;
}

// What is counted in a checkpoint.
struct Counts {
  std::map<std::string_view, uint64_t> dtypes, values;
  uint64_t total_bytes = 0;
  uint64_t shared_storages = 0;
};

Counts CountsOf(const CheckpointIndex& index) {
  Counts counts;
  std::vector<uint64_t> uses(index.storages.size());
  for (const Entry& entry : index.entries) {
    const TensorInfo& tensor = index.tensors[entry.tensor];
    ++counts.dtypes[Name(tensor.dtype)];
    counts.total_bytes += tensor.nbytes;
    if (tensor.storage != kNoStorage) ++uses[tensor.storage];
  }
  for (const uint64_t count : uses) counts.shared_storages += count > 1 ? 1 : 0;
  // A flat index has no object.
  if (!index.flat) counts.values = CountValues(index.root);
  return counts;
}

std::string QuantizationText(const Checkpoint& checkpoint) {
  const auto found = checkpoint.DescribeQuantization();
  if (!found.ok()) {
    return fmt::format("cannot be told: {}", Escape(found.status().message()));
  }
  if (!found->has_value()) return "none";
  const Quantization& one = **found;
  return fmt::format("{}{}{}, {}", Escape(one.method),
                     one.format.empty() ? "" : " ", Escape(one.format),
                     Counted(one.weights, "weight"));
}

int Info(const Options& options) {
  const std::string& file = options.files.front();
  Result<std::shared_ptr<const ByteSource>> source = OpenModel(options, file);
  if (!source.ok()) return Fail(options, source.status());
  const auto checkpoint = OpenCheckpoint(*source, options.open);
  if (!checkpoint.ok()) return Fail(options, checkpoint.status());
  const Status compared = CompareSigned(SignatureScope::kRead);
  if (!compared.ok()) return Fail(options, compared);
  if (options.json) {
    fmt::print("{}\n", InfoJson(**checkpoint, ShownName(file)));
    return kDone;
  }
  const CheckpointIndex& index = checkpoint.value()->index();
  const auto [dtypes, values, total, shared] = CountsOf(index);
  Table table("<.");
  table.Add({"file", Escape(ShownName(file))});
  table.Add({"format", std::string(Name(index.format))});
  table.Add({"tensors", fmt::format("{}, {}", index.entries.size(),
                                    Size(total, options.bytes))});
  for (const auto& [name, count] : dtypes) {
    table.Add({"", fmt::format("{} {}", count, name)});
  }
  table.Add({"storages", fmt::format("{}, {} of them shared",
                                     index.storages.size(), shared)});
  table.Add({"quantization", QuantizationText(**checkpoint)});
  std::string others;
  for (const auto& [name, count] : values) {
    others += fmt::format("{}{} {}", others.empty() ? "" : ", ", count, name);
  }
  if (!others.empty()) table.Add({"other values", others});
  table.Add({"offsets computed", index.offsets_computed ? "yes" : "no"});
  for (const Fact& fact : index.facts) {
    table.Add({Escape(fact.name), FactText(fact.value, false)});
  }
  if (index.metadata.has_value()) {
    for (const Fact& fact : *index.metadata) {
      table.Add({"metadata " + Escape(fact.name), FactText(fact.value, false)});
    }
  }
  table.Print();
  return kDone;
}

Runner AddInfo(CLI::App& app) {
  const auto options = MakeOptions<Options>(app);
  AddBytes(app, *options);
  AddAllow(app, *options);
  AddKey(app, *options);
  AddModel(app, *options);
  AddSignature(app);
  AddDequantize(app, *options);
  return {options, [options] { return Info(*options); }};
}

}  // namespace

extern const Verb kInfo = {"info", "Describe a checkpoint",
                           "haulway info model.pt\n"
                           "haulway info model/ --json",
                           AddInfo};

}  // namespace haulway::cli

namespace haulway {

std::string InfoJson(const Checkpoint& checkpoint, std::string_view file) {
  const CheckpointIndex& index = checkpoint.index();
  const cli::Counts counts = cli::CountsOf(index);
  cli::Json json;
  json.Begin('{').Key("file").Text(file);
  json.Key("format").Text(Name(index.format));
  json.Key("tensor_count").Number(index.entries.size());
  json.Key("total_bytes").Number(counts.total_bytes);
  json.Key("dtypes").Begin('{');
  for (const auto& [name, count] : counts.dtypes) json.Key(name).Number(count);
  json.End('}').Key("values").Begin('{');
  for (const auto& [name, count] : counts.values) json.Key(name).Number(count);
  json.End('}').Key("storages").Number(index.storages.size());
  json.Key("shared_storages").Number(counts.shared_storages);
  json.Key("offsets_computed").Value(index.offsets_computed);
  json.Key("container").Begin('{');
  for (const Fact& fact : index.facts) {
    json.Key(fact.name).Raw(cli::FactText(fact.value, true));
  }
  json.End('}');
  if (index.metadata.has_value()) {
    json.Key("metadata").Begin('{');
    for (const Fact& fact : *index.metadata) {
      json.Key(fact.name).Raw(cli::FactText(fact.value, true));
    }
    json.End('}');
  }
  json.Key("quantization");
  const auto quantization = checkpoint.DescribeQuantization();
  if (quantization.ok()) {
    json.Value(*quantization);
  } else {
    json.Raw("null");
  }
  return json.End('}').text();
}

}  // namespace haulway
