// Plans an edit of a file in segments: the tensors it adds, their names, the
// notes. Reads the file; writes nothing.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "haulway/status.h"
#include "haulway/tensorizer.h"
#include "tensorizer/segment_append.h"
#include "tensorizer/segment_rows.h"
#include "tensorizer/tensorizer_reader.h"

namespace haulway::tensorizer {

// A SegmentEditPlan is a requested edit, checked against the file. The
// constructor's arguments must outlive it.
class SegmentEditPlan {
 public:
  SegmentEditPlan(const TensorizerEdit& edit,
                  const TensorizerEditOptions& options)
      : edit_(edit), options_(options) {}

  // Checks the edit and the keys. Fails as EditTensorizer() does. Call it once.
  Status Make(const Reader& reader);

  // Returns whether there is nothing to do.
  bool empty() const {
    return append_.empty() && renamed_.empty() && !notes_.has_value();
  }
  SegmentAppend& append() { return append_; }
  const SegmentAppend& append() const { return append_; }
  // New names by row.
  const std::unordered_map<uint32_t, std::string>& renamed() const {
    return renamed_;
  }
  // Encoded notes, if they change.
  const std::optional<std::vector<std::byte>>& notes() const { return notes_; }

  // Returns the existing tensors under their new names. Reads and checks those
  // that are renamed.
  Result<std::vector<SegmentRow>> KeptRows(const Reader& reader) const;

 private:
  Result<TensorizerOptions> WriterOptions(const Reader& reader) const;
  Status CheckSameKey(const Reader& reader) const;
  Status PlanAppended(const Reader& reader);
  Status PlanNames(const Reader& reader);
  Status PlanNotes(const Reader& reader);

  const TensorizerEdit& edit_;
  const TensorizerEditOptions& options_;
  SegmentAppend append_;
  std::unordered_map<uint32_t, std::string> renamed_;
  std::optional<std::vector<std::byte>> notes_;
};

}  // namespace haulway::tensorizer
