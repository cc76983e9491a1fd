// Finds credentials in the same places and order as AWS's own libraries.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "haulway/open.h"
#include "haulway/status.h"
#include "net/fork_mutex.h"
#include "s3/profile.h"

namespace haulway::s3 {

struct Credentials {
  std::string access_key;  // If empty, requests are not signed.
  std::string secret_key;
  std::string session_token;
  // Seconds since 1970; nullopt if the credentials do not expire.
  std::optional<int64_t> expires = std::nullopt;
};

// A CredentialChain finds credentials at the first Get(), and again before they
// expire.
//
// Threads: all methods may be called from many threads at once; one thread
// searches, the others wait.
class CredentialChain {
 public:
  CredentialChain(S3Options options, Profile profile, Environment environment)
      : options_(std::move(options)),
        profile_(std::move(profile)),
        environment_(std::move(environment)) {}

  // Sets the options for services on the internet. Call before all other
  // methods.
  void SetRemote(RemoteOptions remote) { remote_ = std::move(remote); }

  // Returns the credentials. Fails with kPermissionDenied and the places
  // searched if there are none, and with kPermissionDenied if the credentials
  // found are incomplete.
  Result<Credentials> Get();
  // Replaces the credentials after a server has refused `refused` as expired.
  // Returns false if only the same credentials are available.
  bool Renew(const Credentials& refused);

 private:
  std::optional<Credentials> Known();
  void SetKnown(std::optional<Credentials> known);
  using Found = Result<std::optional<Credentials>>;
  Result<Credentials> Look() const;
  Found FromEnvironment() const;
  Found FromWebIdentity() const;
  Found FromProcess() const;
  Found FromContainer() const;
  Found FromInstance() const;

  const S3Options options_;
  const Profile profile_;
  const Environment environment_;
  RemoteOptions remote_;
  // Whose holder searches.
  net::LongForkMutex searching_;
  net::ForkMutex mutex_;
  std::optional<Credentials> known_ HAULWAY_GUARDED_BY(mutex_);
};

}  // namespace haulway::s3
