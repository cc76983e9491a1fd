#include "net/libcurl.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <string>

namespace haulway::net {

namespace {

// The name of the library with the interface of curl.h, unchanged since libcurl
// 7.16 (2006).
[[maybe_unused]] constexpr char kSoname[] = "libcurl.so.4";

struct Loaded {
  Libcurl curl = {};
  Status status;
};

Status Refused(const char* why) {
  return Status(Code::kUnsupported,
                fmt::format("URLs need libcurl, which cannot be loaded: {}",
                            why == nullptr ? "no reason is given" : why));
}

// The functions in the table: X(name) for each.
// clang-format off
#define HAULWAY_CURL_FUNCTIONS(X)                                              \
  X(easy_cleanup) X(easy_getinfo) X(easy_init) X(easy_reset) X(easy_setopt)    \
  X(easy_strerror) X(free) X(getdate) X(global_init) X(multi_add_handle)       \
  X(multi_cleanup) X(multi_info_read) X(multi_init) X(multi_perform)           \
  X(multi_poll) X(multi_remove_handle) X(multi_setopt) X(slist_append)         \
  X(slist_free_all) X(url) X(url_cleanup) X(url_get) X(url_set)
// clang-format on

#ifdef HAULWAY_LINKS_CURL

Status Find(Libcurl& curl) {
#define HAULWAY_TAKE(name) curl.name = &curl_##name;
  HAULWAY_CURL_FUNCTIONS(HAULWAY_TAKE)
#undef HAULWAY_TAKE
  return Status();
}

#else

// The library stays loaded: a thread may be inside until the process ends.
Status Find(Libcurl& curl) {
  void* const library = ::dlopen(kSoname, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return Refused(::dlerror());
  Status status;
  const auto find = [&]<typename Function>(Function*& function,
                                           const char* name) {
    function = reinterpret_cast<Function*>(::dlsym(library, name));
    if (function == nullptr && status.ok()) status = Refused(::dlerror());
  };
#define HAULWAY_TAKE(name) find(curl.name, "curl_" #name);
  HAULWAY_CURL_FUNCTIONS(HAULWAY_TAKE)
#undef HAULWAY_TAKE
  return status;
}

#endif

Loaded Load() {
  Loaded loaded;
  loaded.status = Find(loaded.curl);
  if (!loaded.status.ok()) return loaded;
  const CURLcode ready = loaded.curl.global_init(CURL_GLOBAL_DEFAULT);
  if (ready != CURLE_OK) {
    loaded.status = Refused(loaded.curl.easy_strerror(ready));
  }
  return loaded;
}

const Loaded& Once() {
  static const Loaded loaded = Load();
  return loaded;
}

}  // namespace

Status LoadLibcurl() { return Once().status; }

const Libcurl& Curl() { return Once().curl; }

std::optional<std::time_t> ParseHttpDate(std::string_view text) {
  if (!LoadLibcurl().ok()) return std::nullopt;
  const std::time_t when = Curl().getdate(std::string(text).c_str(), nullptr);
  constexpr std::time_t kYear10000 = 253'402'300'800;
  if (when < 0 || when >= kYear10000) return std::nullopt;
  return when;
}

}  // namespace haulway::net
