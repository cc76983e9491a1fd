// Publications: versions of an object in shared memory, under a name.
//
// A Publisher shows one version after another; Subscribers in any process of
// the same user map the newest and keep what they hold, whole and unchanged,
// while newer ones come. All versions of a publication lie in one memory file
// (memfd), which every publisher and subscriber holds: the kernel frees it with
// the last of them, however that ends, and until then a new publisher of the
// name goes on in it.
//
// Locks of open files show which process holds what; the kernel releases them
// when a process ends. docs/publish.md has the layout and the rules.
//
// Access: processes of the same user may attach if they see the others in
// /proc, that is, in the same PID namespace.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/buffer.h"
#include "haulway/status.h"

namespace haulway {

namespace publish {
class PublicationFile;
}

// Bytes of an object that lie outside its body. `flags` are
// EnvelopePart::Flags.
struct PublishedPart {
  std::span<const std::byte> bytes;
  uint32_t flags = 0;
};

// A Publisher is the one that publishes under a name.
//
// Memory of a version that is neither kept nor held is used again for a later
// one: with one version kept and readers that follow, two are used in turn.
// Threads: one at a time. Processes: belongs to the one that opened it.
class HAULWAY_EXPORT Publisher {
 public:
  // `name` is 1 to 100 of A-Z, a-z, 0-9, dot, underscore, hyphen; not "." or
  // "..". Goes on after a publisher that ended. kUnavailable, with the process
  // id, while another one lives; kInvalidArgument for another name;
  // kPermissionDenied where the folder of names is not this user's.
  static Result<std::unique_ptr<Publisher>> Open(std::string_view name);
  Publisher(const Publisher&) = delete;
  Publisher& operator=(const Publisher&) = delete;
  ~Publisher();  // Close().

  // Memory for the next version, aligned to a page: what lies in it when
  // Publish() is called is not copied. kLimit, with sizes, where the machine
  // has not that much; no version is touched then. kInvalidArgument while
  // memory that it gave before is in use and was not published.
  Result<Buffer> Reserve(uint64_t bytes);
  // Shows a version: a pickle and its parts, which are copied unless they lie
  // in what Reserve() gave. `keep` of the newest versions stay for those who
  // ask for them by number. Returns its number; the first is 1. kLimit as
  // Reserve(), or where more than 999 versions are held; the newest version is
  // then what it was.
  Result<uint64_t> Publish(std::span<const std::byte> body,
                           std::span<const PublishedPart> parts, uint64_t keep);
  // The number of the newest version, 0 before the first.
  uint64_t version() const;
  // Lets go of the name. Versions stay for who is attached.
  void Close();
  // In a child that was forked: lets go of what keeps the name, which is the
  // parent's. Every later call fails.
  void Leave();

  class State;

 private:
  explicit Publisher(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

struct PublishedVersion {
  uint64_t version = 0;
  // An envelope (items.h) whose parts are all inlined. Mapped copy-on-write:
  // what this process writes to it others do not see. The version is held as
  // long as a Buffer of it is.
  Buffer message;
};

// A Subscriber is attached to a publication. Threads: any.
class HAULWAY_EXPORT Subscriber {
 public:
  // kNotFound if no process of this user has published under the name, or none
  // that did so is left; kPermissionDenied if another user does;
  // kInvalidArgument as Publisher::Open().
  static Result<std::unique_ptr<Subscriber>> Open(std::string_view name);
  Subscriber(const Subscriber&) = delete;
  Subscriber& operator=(const Subscriber&) = delete;
  ~Subscriber();

  // The newest version, if it is newer than `newer_than`; waits up to
  // `wait_ns` for one: kTimeout. Maps it, and looks at none of its bytes.
  // kCorrupt if the file does not hold what it must.
  Result<PublishedVersion> Take(uint64_t newer_than, uint64_t wait_ns) const;
  // The version of that number. kNotFound if it is not kept any more, or not
  // there yet.
  Result<PublishedVersion> TakeVersion(uint64_t version) const;
  // Number of the newest version, 0 before the first.
  uint64_t newest() const;
  // Whether a publisher has the name now.
  bool has_publisher() const;

 private:
  explicit Subscriber(std::shared_ptr<publish::PublicationFile> file);
  std::shared_ptr<publish::PublicationFile> file_;
};

// A publication that some process of this machine holds.
struct PublicationFacts {
  std::string name;
  uint64_t version = 0;     // The newest; 0: none yet.
  uint64_t bytes = 0;       // Size of that version.
  uint64_t held_bytes = 0;  // Memory that all its versions take.
  uint32_t publisher = 0;   // Process id; 0: it is gone.
  uint32_t readers = 0;     // Subscribers, by descriptor.
};
// Lists the publications that this user may see, by reading /proc; sorted by
// name.
HAULWAY_EXPORT Result<std::vector<PublicationFacts>> ListPublications();
// Removes names whose publishers were killed; returns them.
HAULWAY_EXPORT Result<std::vector<std::string>> SweepPublications();

}  // namespace haulway
