// Who asks: credentials as AWS's own libraries find them, in their order.

#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "haulway/open.h"
#include "haulway/status.h"
#include "s3/profile.h"

namespace haulway::s3 {

struct Credentials {
  std::string access_key;  // Empty: requests are not signed.
  std::string secret_key;
  std::string session_token;
  // Seconds since 1970; of those that end.
  std::optional<int64_t> expires = std::nullopt;
};

// A CredentialChain finds credentials when they are first asked for, and anew
// before they end.
//
// Threads: all of it may be called from many at once; one looks, others wait.
class CredentialChain {
 public:
  CredentialChain(S3Options options, Profile profile, Environment environment)
      : options_(std::move(options)),
        profile_(std::move(profile)),
        environment_(std::move(environment)) {}

  // How a service on the internet is asked. Requires: no other call before.
  void SetRemote(RemoteOptions remote) { remote_ = std::move(remote); }

  // Fails with kPermissionDenied if there are none, saying what was tried, and
  // if those that there are are not whole.
  Result<Credentials> Get();
  // Forgets them if they are those of `access_key` and can be had anew: a
  // server says that they ended. Returns whether that is so.
  bool Renew(const Credentials& refused);

 private:
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
  std::mutex mutex_;
  std::optional<Credentials> known_;
};

}  // namespace haulway::s3
