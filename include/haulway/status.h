// A Status says whether a call succeeded and, if not, what is wrong and where.
//
// The library reports every failure this way: it never throws, prints, aborts
// or exits. Every message has the same form, and places are appended as the
// error passes up:
//
//   what is wrong: expected A, found B; at byte N; in PART; of SOURCE
//
// The innermost layer says what is wrong and at which byte; each layer above
// appends only the place that it knows. Messages never contain keys, tokens,
// query strings or tensor contents.
//
// Threads: like a std::string, one object must not be changed by two threads.
//
// This header also defines the project's five macros; there are no others.

#pragma once

#include <cassert>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#define HAULWAY_EXPORT [[gnu::visibility("default")]]

#if defined(__clang__)
#define HAULWAY_LIFETIME_BOUND [[clang::lifetimebound]]
#define HAULWAY_GUARDED_BY(mutex) __attribute__((guarded_by(mutex)))
#else
#define HAULWAY_LIFETIME_BOUND
#define HAULWAY_GUARDED_BY(mutex)
#endif

// Returns from the enclosing function if `expression`, a Status, is not ok.
#define HAULWAY_TRY(expression)                              \
  do {                                                       \
    ::haulway::Status haulway_try_status = (expression);     \
    if (!haulway_try_status.ok()) return haulway_try_status; \
  } while (false)

// Assigns the value of `expression`, a Result, to `target`, which may declare
// a variable; returns from the enclosing function if there is no value. At
// most one per line.
#define HAULWAY_ASSIGN(target, expression) \
  HAULWAY_ASSIGN_IN(HAULWAY_ASSIGN_NAME(__LINE__), target, expression)
#define HAULWAY_ASSIGN_NAME(line) HAULWAY_ASSIGN_JOIN(line)
#define HAULWAY_ASSIGN_JOIN(line) haulway_result_##line
#define HAULWAY_ASSIGN_IN(name, target, expression) \
  auto name = (expression);                         \
  if (!name.ok()) return std::move(name).status();  \
  target = std::move(name).value()

namespace haulway {

enum class Code : uint8_t {
  kOk,
  kInvalidArgument,   // The caller broke a documented requirement.
  kNotFound,          // There is no such file, member or tensor.
  kPermissionDenied,  // The system refused access.
  kUnavailable,       // All retries failed.
  kTimeout,           // No answer in time.
  kIoError,           // Any other failure of the system; see os_error().
  kTruncated,         // The bytes end earlier than the format says.
  kCorrupt,           // The bytes contradict the format.
  kMismatch,          // Well formed, but a digest or comparison differs.
  kUnsafe,            // A pickle asks for something that is not allowed.
  kLimit,             // A limit in ParseLimits was exceeded.
  kAuth,              // Wrong key, or authentication failed.
  kUnsupported,       // Legal, but not implemented.
  kCancelled,         // The caller asked to stop.
  kInternal,          // A bug in Haulway.
  kSignature,         // A model is not signed by whom the caller trusts.
};

// Returns the enumerator's spelling, "kCorrupt".
HAULWAY_EXPORT std::string_view CodeName(Code code);

class HAULWAY_EXPORT [[nodiscard]] Status {
 public:
  Status() = default;  // ok
  // Requires: code is not kOk.
  Status(Code code, std::string_view what);
  // Makes the Status of a failed system call. Appends the system's text for
  // `os_error` and derives the code from it (ENOENT: kNotFound, EACCES:
  // kPermissionDenied, ...).
  static Status FromErrno(int os_error, std::string_view what);

  Status(const Status& other);
  Status& operator=(const Status& other);
  Status(Status&&) noexcept = default;
  Status& operator=(Status&&) noexcept = default;
  ~Status() = default;

  bool ok() const { return rep_ == nullptr; }
  Code code() const { return rep_ == nullptr ? Code::kOk : rep_->code; }
  // Empty if ok.
  std::string_view message() const HAULWAY_LIFETIME_BOUND;
  // Offset of the fault in the innermost part, if the layer that found it knew
  // the offset. The message names the part.
  std::optional<uint64_t> byte() const;
  // The errno of a failed system call, else 0.
  int os_error() const { return rep_ == nullptr ? 0 : rep_->os_error; }

  // Each appends a place and returns *this, for use in a return statement. No
  // effect on an ok status. At() has no effect if a byte is already set, nor
  // has In() if the message ends with this part.
  Status&& At(uint64_t byte) &&;
  Status&& In(std::string_view part) &&;
  Status&& Of(std::string_view source) &&;
  // Attaches what failed in another language: an exception of Python. No effect
  // on an ok status.
  Status&& Because(std::shared_ptr<void> cause) &&;
  // Null if nothing is attached.
  std::shared_ptr<void> cause() const;

 private:
  struct Rep {
    Code code;
    int os_error = 0;
    std::optional<uint64_t> byte;
    std::string message;
    std::shared_ptr<void> cause = nullptr;
  };
  std::unique_ptr<Rep> rep_;  // Null is ok.
};

// A Finding is one fault in a report: the parts of a Status.
struct Finding {
  Code code;
  std::string message;
  std::optional<uint64_t> byte;
};

// A Result is a value, or the Status that says why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : held_(std::in_place_index<1>, std::move(value)) {}
  // Requires: status is not ok.
  Result(Status status) : held_(std::in_place_index<0>, std::move(status)) {
    assert(!std::get<0>(held_).ok());
  }

  bool ok() const { return held_.index() == 1; }
  Status status() const& { return ok() ? Status() : std::get<0>(held_); }
  Status status() && { return ok() ? Status() : std::get<0>(std::move(held_)); }

  // Requires, for all of these: ok().
  T& value() & HAULWAY_LIFETIME_BOUND { return *std::get_if<1>(&held_); }
  const T& value() const& HAULWAY_LIFETIME_BOUND {
    return *std::get_if<1>(&held_);
  }
  T&& value() && { return std::move(*std::get_if<1>(&held_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  std::variant<Status, T> held_;
};

}  // namespace haulway
