#include "convert/edit_steps.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <set>
#include <string_view>

#include "convert/leaves.h"

namespace haulway::convert {

namespace {

class Telling {
 public:
  Telling(const Checkpoint& file, const FileEdit& edit)
      : file_(file), edit_(edit) {
    // Only these edits need the rows.
    if (edit.drop.empty() && edit.replace.empty() && edit.dtype_of.empty() &&
        !edit.dtype.has_value()) {
      return;
    }
    for (const NamedTensor& tensor : NameTensors(file.index())) {
      rows_.emplace(tensor.name, tensor.tensor);
    }
  }

  std::vector<std::string> Tell() {
    for (const auto& [from, to] : edit_.rename) {
      Add("rename '{}' to '{}'", from, to);
    }
    for (const std::string& name : edit_.drop) {
      Add("drop '{}': {}", name, Facts(name));
    }
    for (const auto& [key, value] : edit_.set) {
      Add("set '{}' to '{}'", key, value);
    }
    for (const std::string& key : edit_.unset) Add("unset '{}'", key);
    TellCasts();
    for (const auto& one : edit_.replace) {
      Add("replace '{}': {}, by a tensor of '{}'", one.name, Facts(one.name),
          one.from->source().name());
    }
    for (const auto& other : edit_.merge) {
      Add("add {} of '{}'", Tensors(other->entries().size()),
          other->source().name());
    }
    if (edit_.untie) Add("write tensors that share memory each in full");
    return std::move(steps_);
  }

 private:
  template <class... Parts>
  void Add(fmt::format_string<Parts...> text, Parts&&... parts) {
    steps_.push_back(fmt::format(text, std::forward<Parts>(parts)...));
  }

  static std::string Tensors(size_t count) {
    return fmt::format("{} tensor{}", count, count == 1 ? "" : "s");
  }

  const TensorInfo& InfoOf(const std::string& name) const {
    return file_.index().tensors[rows_.at(name)];
  }

  std::string Facts(const std::string& name) const {
    const TensorInfo& info = InfoOf(name);
    return fmt::format("{} [{}]", Name(info.dtype),
                       fmt::join(info.shape, ", "));
  }

  void TellCasts() {
    const std::set<std::string_view> dropped(edit_.drop.begin(),
                                             edit_.drop.end());
    for (const auto& [name, to] : edit_.dtype_of) {
      if (dropped.contains(name)) continue;
      Add("cast '{}' from {} to {}", name, Name(InfoOf(name).dtype), Name(to));
    }
    if (!edit_.dtype.has_value()) return;
    size_t count = 0;
    for (const auto& [name, row] : rows_) {
      const DType dtype = file_.index().tensors[row].dtype;
      count += TakesCast(dtype) && dtype != *edit_.dtype &&
               !edit_.dtype_of.contains(name) && !dropped.contains(name);
    }
    Add("cast {} to {}", Tensors(count), Name(*edit_.dtype));
  }

  const Checkpoint& file_;
  const FileEdit& edit_;
  std::map<std::string, uint32_t, std::less<>> rows_;
  std::vector<std::string> steps_;
};

}  // namespace

std::vector<std::string> StepsOf(const Checkpoint& file, const FileEdit& edit) {
  return Telling(file, edit).Tell();
}

}  // namespace haulway::convert
