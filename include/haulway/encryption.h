// Keys for encrypted checkpoints. A key is never part of a message, and its
// memory is cleared when it is no longer needed.

#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>

#include "haulway/export.h"

namespace haulway {

inline constexpr size_t kKeyBytes = 32;

// A Secret is bytes that are cleared when it goes.
class HAULWAY_EXPORT Secret {
 public:
  Secret() = default;
  explicit Secret(std::span<const std::byte> bytes);
  explicit Secret(std::string_view text);
  Secret(const Secret& other);
  Secret& operator=(const Secret& other);
  Secret(Secret&& other) noexcept;
  Secret& operator=(Secret&& other) noexcept;
  ~Secret();

  std::span<const std::byte> bytes() const HAULWAY_LIFETIME_BOUND {
    return {bytes_.get(), size_};
  }
  bool empty() const { return size_ == 0; }

 private:
  void Clear();
  std::unique_ptr<std::byte[]> bytes_;
  size_t size_ = 0;
};

// What opens an encrypted checkpoint, or closes a new one: a key of kKeyBytes,
// or a passphrase from which one is derived. Neither: no encryption.
struct EncryptionKey {
  Secret key;
  Secret passphrase;

  bool empty() const { return key.empty() && passphrase.empty(); }
};

}  // namespace haulway
