// Design: one walk over the object, without recursion, with the path of each
// value as names of tensors have it. Functions of torch that build a tensor
// from others are known by their names: the parts of a sparse or nested tensor
// belong to one that no target can store, and a tensor of a class of its own
// has its data in tensors below its name. Everything else that is no tensor is
// listed, so that a conversion can say what it leaves out. A flat dict of
// tensors is not walked.

#include "convert/leaves.h"

#include <fmt/format.h>

#include <map>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "base/text.h"
#include "haulway/nearest.h"
#include "haulway/tree.h"
#include "torch/torch_tensors.h"

namespace haulway::convert {

namespace {

// Limit on reported values. Nobody reads a longer report.
constexpr size_t kMostOthers = 100'000;

std::string_view KindName(const Value& value) {
  switch (value.kind()) {
    case Kind::kNone:
      return "None";
    case Kind::kBool:
      return "a bool";
    case Kind::kInt:
    case Kind::kBigInt:
      return "a number";
    case Kind::kFloat:
    case Kind::kComplex:
      return "a number";
    case Kind::kString:
    case Kind::kRawString:
      return "text";
    case Kind::kBytes:
    case Kind::kByteArray:
      return "bytes";
    case Kind::kSet:
    case Kind::kFrozenSet:
      return "a set";
    case Kind::kGlobal:
      return "a name";
    default:
      return "no tensor";
  }
}

// A value, and its path as names have it with and without escaped dots.
struct Place {
  Value value;
  std::string path;
  std::string escaped;

  Place Child(const Value& child, const Value& key) const {
    return Child(child, torch::NamePart(key, /*escaped=*/false),
                 torch::NamePart(key, /*escaped=*/true));
  }
  Place Child(const Value& child, std::string_view part,
              std::string_view escaped_part) const {
    return {child, Joined(path, part), Joined(escaped, escaped_part)};
  }

 private:
  static std::string Joined(const std::string& path, std::string_view part) {
    return path.empty() ? std::string(part) : fmt::format("{}.{}", path, part);
  }
};

class Walk {
 public:
  explicit Walk(Leaves* leaves) : leaves_(*leaves) {}

  void Run(const Value& root) {
    if (root.is_mapping()) NoteKeys(root.mapping());
    pending_.push_back({root, "", ""});
    while (!pending_.empty()) {
      const Place place = std::move(pending_.back());
      pending_.pop_back();
      Visit(place);
    }
    if (left_ > 0) {
      leaves_.others.push_back(
          {"...", fmt::format("{} more, which are not listed", left_)});
    }
  }

 private:
  void NoteKeys(const Mapping& mapping) {
    for (const MappingItem& item : mapping.items()) {
      if (!item.key.is(Kind::kString)) continue;
      std::string shown = Escape(item.key.text());
      if (shown != item.key.text()) {
        leaves_.keys.emplace_back(std::move(shown), item.key.text());
      }
    }
  }

  void Other(const std::string& path, std::string why, bool is_key = false) {
    if (leaves_.others.size() >= kMostOthers) {
      ++left_;
      return;
    }
    leaves_.others.push_back(
        {path.empty() ? "the object" : path, std::move(why), is_key});
  }

  void Visit(const Place& place) {
    const Value& value = place.value;
    if (value.is_mapping()) return VisitItems(place);
    if (value.is(Kind::kList) || value.is(Kind::kTuple)) {
      if (!visited_.insert(value.identity()).second) return;
      const auto items = value.sequence().items();
      for (size_t i = items.size(); i-- > 0;) {
        const std::string number = fmt::format("{}", i);
        pending_.push_back(place.Child(items[i], number, number));
      }
      return;
    }
    if (value.is(Kind::kObject)) return VisitObject(place);
    if (value.is(Kind::kPersistent)) return;  // A storage counts as a tensor.
    Other(place.path, fmt::format("{}, which is no tensor", KindName(value)));
  }

  void VisitItems(const Place& place) {
    if (!visited_.insert(place.value.identity()).second) return;
    const auto items = place.value.mapping().items();
    for (size_t i = items.size(); i-- > 0;) {
      pending_.push_back(place.Child(items[i].value, items[i].key));
    }
    for (const MappingItem& item : items) {
      if (item.key.is(Kind::kString) || item.key.is(Kind::kRawString)) continue;
      Other(place.Child(item.value, item.key).path,
            fmt::format("{}, which became text", KindName(item.key)),
            /*is_key=*/true);
    }
  }

  void VisitObject(const Place& place) {
    const Object& object = place.value.object();
    if (object.callable == nullptr) {
      if (object.tensor == Object::kNoTensor) {
        Other(place.path, "an object that is no tensor");
      }
      return;
    }
    const Global& callable = *object.callable;
    const std::span<const Value> args = object.args.is(Kind::kTuple)
                                            ? object.args.sequence().items()
                                            : std::span<const Value>();
    if (object.tensor != Object::kNoTensor) {
      if (callable.name == "_rebuild_qtensor" && args.size() > 4) {
        leaves_.quantizers.emplace(object.tensor, args[4]);
      }
      return;
    }
    if (callable.name == "_rebuild_sparse_tensor" ||
        callable.name == "_rebuild_nested_tensor") {
      leaves_.composed.insert(place.path);
      leaves_.composed.insert(place.escaped);
      return;
    }
    if (callable.name.starts_with("_rebuild_parameter") && !args.empty()) {
      pending_.push_back({args[0], place.path, place.escaped});
      return;
    }
    if (callable.name.starts_with("_rebuild_from_type") && args.size() > 1 &&
        args[0].is(Kind::kGlobal) && args[1].is(Kind::kGlobal) &&
        args[0].global().name == "_rebuild_wrapper_subclass") {
      const Global& wrapper = args[1].global();
      std::string called = fmt::format("{}.{}", wrapper.module, wrapper.name);
      leaves_.wrappers.emplace(place.escaped, called);
      leaves_.wrappers.emplace(place.path, std::move(called));
      return;
    }
    if (callable.name.starts_with("_rebuild_")) return;
    Other(place.path,
          fmt::format("an object of {}.{}", callable.module, callable.name));
  }

  Leaves& leaves_;
  std::vector<Place> pending_;
  std::unordered_set<const void*> visited_;
  uint64_t left_ = 0;  // Number of values past kMostOthers.
};

}  // namespace

Leaves FindLeaves(const CheckpointIndex& index) {
  Leaves leaves;
  if (!index.flat) Walk(&leaves).Run(index.root);
  return leaves;
}

const std::string* ComposedOf(const Leaves& leaves, std::string_view name) {
  // The path of the composed tensor is empty if it is the whole object.
  for (size_t end = 0; end != name.npos; end = name.find('.', end + 1)) {
    const auto whole = leaves.composed.find(name.substr(0, end));
    if (whole != leaves.composed.end()) return &*whole;
  }
  return nullptr;
}

Status CheckWhole(const Leaves& leaves, std::string_view name) {
  if (const auto wrapper = leaves.wrappers.find(name);
      wrapper != leaves.wrappers.end()) {
    const std::string& called = wrapper->second;
    return Status(
               Code::kUnsupported,
               called.starts_with("torch.distributed.")
                   ? fmt::format("a {}, of which this file has the part of the "
                                 "process that saved it: convert the folder "
                                 "with the files of all processes",
                                 called)
                   : fmt::format("a {}, whose data are in the tensors below "
                                 "its name: leave it out",
                                 called))
        .In(Quote(name));
  }
  const std::string* const whole = ComposedOf(leaves, name);
  if (whole == nullptr) return Status();
  return Status(Code::kUnsupported,
                "a sparse or nested tensor, which cannot be converted: "
                "leave it out")
      .In(Quote(*whole));
}

std::vector<NamedTensor> NameTensors(const CheckpointIndex& index) {
  const Leaves leaves = FindLeaves(index);
  const std::map<std::string_view, std::string_view> keys(leaves.keys.begin(),
                                                          leaves.keys.end());
  std::vector<NamedTensor> named;
  named.reserve(index.entries.size());
  for (const Entry& entry : index.entries) {
    const auto key = keys.find(entry.name);
    named.push_back(
        {key == keys.end() ? entry.name : key->second, entry.tensor});
  }
  return named;
}

Result<uint32_t> RowOf(const CheckpointIndex& index, std::string_view name) {
  const std::vector<NamedTensor> named = NameTensors(index);
  if (named.size() == 1) return named.front().tensor;
  for (const NamedTensor& tensor : named) {
    if (tensor.name == name) return tensor.tensor;
  }
  return Status(
      Code::kNotFound,
      fmt::format("no tensor {} among {}{}", Quote(name), named.size(),
                  HintOf(name, named,
                         [](const NamedTensor& one) { return one.name; })));
}

}  // namespace haulway::convert
