#include "ls_tree.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>

namespace haulway::cli {
namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// Removes the leading number from `text`, and returns it without leading zeros.
std::string_view TakeNumber(std::string_view* text) {
  size_t size = 0;
  while (size < text->size() && IsDigit((*text)[size])) ++size;
  std::string_view digits = text->substr(0, size);
  text->remove_prefix(size);
  while (digits.size() > 1 && digits[0] == '0') digits.remove_prefix(1);
  return digits;
}

}  // namespace

bool NaturalLess(std::string_view a, std::string_view b) {
  while (!a.empty() && !b.empty()) {
    if (IsDigit(a[0]) && IsDigit(b[0])) {
      const std::string_view left = TakeNumber(&a), right = TakeNumber(&b);
      if (left.size() != right.size()) return left.size() < right.size();
      if (left != right) return left < right;
    } else {
      if (a[0] != b[0]) return a[0] < b[0];
      a.remove_prefix(1);
      b.remove_prefix(1);
    }
  }
  return a.size() < b.size();
}

namespace {

struct Natural {
  using is_transparent = void;
  bool operator()(std::string_view a, std::string_view b) const {
    if (NaturalLess(a, b)) return true;
    return !NaturalLess(b, a) && a < b;  // "01" and "1" are different names.
  }
};

// A Module is the common prefix of names.
struct Module {
  uint64_t tensors = 0;
  uint64_t nbytes = 0;
  const TensorInfo* tensor = nullptr;  // The tensor with exactly this name.
  std::map<std::string_view, Module, Natural> parts = {};
};

Module ModulesOf(const CheckpointIndex& index,
                 const std::vector<Entry>& entries, int depth) {
  Module root;
  for (const Entry& entry : entries) {
    const TensorInfo& tensor = index.tensors[entry.tensor];
    Module* at = &root;
    std::string_view rest = entry.name;
    for (int level = 0;; ++level) {
      ++at->tensors;
      at->nbytes += tensor.nbytes;
      if (level == depth) break;
      const size_t dot = rest.find('.');
      at = &at->parts[rest.substr(0, dot)];
      if (dot == rest.npos) {
        ++at->tensors;
        at->nbytes += tensor.nbytes;
        at->tensor = &tensor;
        break;
      }
      rest.remove_prefix(dot + 1);
    }
  }
  return root;
}

void AddRows(const Module& module, int indent, bool exact_sizes, Table* table) {
  for (const auto& [name, part] : module.parts) {
    std::string about = Counted(part.tensors, "tensor");
    if (part.tensor != nullptr && part.tensors == 1) {
      about = fmt::format(
          "{} {}", Name(part.tensor->dtype),
          Shape(ElementShape(part.tensor->dtype, part.tensor->shape)));
    } else if (part.tensors == 1) {
      about = "1 tensor";
    }
    table->Add(
        {std::string(2 * static_cast<size_t>(indent), ' ') + Escape(name),
         Size(part.nbytes, exact_sizes), std::move(about)});
    AddRows(part, indent + 1, exact_sizes, table);
  }
}

void AddModule(const Module& module, const std::string& path, Json* json) {
  // A single tensor is not a module.
  if (module.tensor != nullptr && module.tensors == 1) return;
  json->Begin('{').Key("name").Text(path);
  json->Key("tensors").Number(module.tensors);
  json->Key("nbytes").Number(module.nbytes).End('}');
  for (const auto& [name, part] : module.parts) {
    AddModule(
        part,
        path.empty() ? std::string(name) : fmt::format("{}.{}", path, name),
        json);
  }
}

}  // namespace

void PrintTree(const CheckpointIndex& index, const std::vector<Entry>& entries,
               int depth, bool exact_sizes) {
  const Module root = ModulesOf(index, entries, depth);
  Table table("<><");
  AddRows(root, 0, exact_sizes, &table);
  table.Print();
  fmt::print("{}, {}\n", Counted(root.tensors, "tensor"),
             Size(root.nbytes, exact_sizes));
}

void AddModules(const CheckpointIndex& index, const std::vector<Entry>& entries,
                int depth, Json* json) {
  json->Key("modules").Begin('[');
  AddModule(ModulesOf(index, entries, depth), "", json);
  json->End(']');
}

}  // namespace haulway::cli
