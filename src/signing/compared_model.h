// A model whose files are compared with its signature as they are read.

#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/fresh_memory.h"
#include "haulway/signature.h"
#include "haulway/signing.h"
#include "haulway/source.h"
#include "signing/check_signature.h"
#include "signing/digest_files.h"
#include "signing/model_access.h"
#include "signing/statement.h"

namespace haulway::signing {

class ComparedModel;

// Returns the failure that these findings are, naming the first files; ok if
// there is none.
Status StatusOf(std::span<const SignatureFinding> findings);

// One file of the model, and what of it was compared. Threads: any number.
class ComparedFile {
 public:
  ComparedFile(ComparedModel* model, std::string name, size_t first,
               size_t count);

  const std::string& name() const { return name_; }

  // What of the file one digest covers: all, or a piece.
  struct Unit {
    uint64_t begin = 0, end = 0;
    size_t resource = 0;
  };

 private:
  friend class ComparedModel;
  friend class ComparedSource;

  // Memory of the file, and which of its units are compared.
  struct Held {
    Held(FreshMemory bytes, size_t units)
        : memory(std::move(bytes)), compared(units) {}
    FreshMemory memory;
    std::vector<bool> compared;
  };
  struct Parsed {
    uint64_t offset = 0;
    uint64_t length = 0;
    std::string digest;  // SHA-256 of the bytes that were parsed.
  };

  ComparedModel* const model_;
  const std::string name_;
  const size_t first_, count_;  // Rows of the statement's resources.
  std::mutex mutex_;
  std::shared_ptr<const ByteSource> source_;
  // Null if only callers hold the memory.
  std::atomic<std::shared_ptr<Held>> held_;
  std::weak_ptr<Held> last_held_;
  std::vector<Parsed> parsed_;
  Status failure_;
};

class ComparedModel : public SignedModel,
                      public std::enable_shared_from_this<ComparedModel> {
 public:
  ComparedModel(CheckedSignature checked, std::unique_ptr<ModelAccess> access,
                const SignatureOptions& options);

  const SignatureFacts& facts() const override { return checked_.facts; }
  const std::vector<std::string>& notes() const override {
    return checked_.notes;
  }
  const Statement& statement() const { return checked_.statement; }
  const ModelAccess& access() const { return *access_; }

  // Compares the names of the files with the statement: missing, extra, links,
  // special files. `signature`: the signature's name in the model, if it lies
  // there.
  Result<std::vector<SignatureFinding>> CompareNames(
      const std::optional<std::string>& signature);

  // Size of all files, as far as listing them showed it.
  uint64_t listed_bytes() const { return listed_bytes_; }

  // Compares the content of all files that CompareNames() found to be there,
  // and keeps none; leaves out the files `without`. Counts them.
  struct Compared {
    uint64_t files = 0, bytes = 0;
    std::vector<SignatureFinding> findings;
  };
  Result<Compared> CompareContent(
      std::span<const std::string> without, const DigestOptions& options,
      const std::function<void(uint64_t done, uint64_t total)>& progress);
  // Returns whether the signature lists a file, or the folder of such.
  bool Lists(std::string_view name) const;

  Status Compare(SignatureScope scope, int threads,
                 const std::atomic<bool>* cancel) override;
  void KeepLast() override { keeps_last_ = true; }

  // Returns a source of the same bytes that compares them, for a file that
  // `uri` names. Fails with kMismatch if the signature does not list it.
  Result<std::shared_ptr<const ByteSource>> Wrap(
      std::shared_ptr<const ByteSource> source, std::string_view uri);
  Result<std::shared_ptr<const ByteSource>> WrapNamed(
      std::shared_ptr<const ByteSource> source, std::string_view name);

  // Until the result is destroyed, sources return bytes to parse.
  std::shared_ptr<const void> BeginParsing();
  bool is_parsing() const { return parsing_.load() > 0; }

 private:
  friend class ComparedSource;

  // What is wanted of a file: these ranges, or all.
  struct Wanted {
    ComparedFile* file;
    std::vector<ByteRange> ranges{};
    bool is_whole = false;
    bool keeps = true;  // In memory.
  };
  struct Task;
  // Reads and compares what is wanted, and what was parsed of the same files.
  Status CompareRanges(std::span<const Wanted> wanted,
                       const DigestOptions& options);
  Result<std::vector<SignatureFinding>> Run(std::span<const Wanted> wanted,
                                            const DigestOptions& options,
                                            uint64_t* bytes);
  Status Prepare(const Wanted& wanted, Task* task);
  std::vector<ComparedFile::Unit> UnitsOf(const ComparedFile& file) const;
  // Requires: the range is not empty, and lies within the file.
  bool HasCompared(const ComparedFile::Held& held,
                   const ByteRange& range) const;
  Status Differs(const ComparedFile& file, const Resource& resource,
                 const DigestJob& job) const;
  // Compares what was parsed of a file with its compared bytes.
  Status CheckParsed(ComparedFile* file, const ComparedFile::Held& held) const;
  ComparedFile* Find(std::string_view name) const;
  void Keep(ComparedFile* file, std::shared_ptr<ComparedFile::Held> held);

  CheckedSignature checked_;
  const std::unique_ptr<ModelAccess> access_;
  const SignatureOptions options_;
  std::vector<std::unique_ptr<ComparedFile>> files_;  // By name.
  std::atomic<int> parsing_{0};
  std::atomic<bool> keeps_last_{false};
  std::mutex keep_mutex_;
  uint64_t listed_bytes_ = 0;
  ComparedFile* last_kept_ = nullptr;  // With KeepLast().
};

}  // namespace haulway::signing
