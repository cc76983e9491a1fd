// The files of a model: which there are, and how to open them.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway::signing {

// What is in a folder besides folders.
struct ModelEntry {
  enum class Kind : uint8_t {
    kFile,
    kLink,  // To a file.
    kLinkToFolder,
    kBrokenLink,
    kSpecial,  // A device, socket or pipe.
  };
  std::string name;  // From the model's folder, with '/'.
  Kind kind = Kind::kFile;
  uint64_t bytes = 0;
};

// Paths that are left out, each with everything below it.
class IgnoredPaths {
 public:
  // Takes a path from the model's folder; drops one that leads outside.
  void Add(std::string_view path);
  bool Has(std::string_view name) const;
  const std::set<std::string, std::less<>>& paths() const { return paths_; }

 private:
  std::set<std::string, std::less<>> paths_;
};

class ModelAccess {
 public:
  virtual ~ModelAccess() = default;

  // Whether the model is a file, whose name is kOneFile.
  virtual bool is_file() const = 0;
  // Lists all entries but the ignored; nullopt if they cannot be listed.
  virtual Result<std::optional<std::vector<ModelEntry>>> List(
      const IgnoredPaths& ignored) const = 0;
  // Opens a file by its name in the model.
  virtual Result<std::shared_ptr<const ByteSource>> Open(
      std::string_view name) const = 0;
  // Returns the name in the model of a path or URL; nullopt if it is outside.
  virtual std::optional<std::string> NameOf(std::string_view uri) const = 0;
};

// The model at a local path, a file or folder.
Result<std::unique_ptr<ModelAccess>> AccessLocalModel(std::string path);

// Adds a path that the caller ignores: from the model's folder, or absolute.
void AddIgnored(const ModelAccess& access, std::string_view path,
                IgnoredPaths* ignored);

// Returns the path from `root` to `path`, kOneFile if they are the same;
// nullopt if it is outside. Both may be reached through links, but a link at
// the end of `path` is the path itself.
std::optional<std::string> NameWithin(const std::string& root,
                                      const std::string& path);

}  // namespace haulway::signing
