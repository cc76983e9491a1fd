#include "net/libcurl.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <string>

namespace haulway::net {

namespace {

// The name of the interface that curl.h declares, which has been the same since
// libcurl 7.16 of 2006.
constexpr char kSoname[] = "libcurl.so.4";

struct Loaded {
  Libcurl curl = {};
  Status status;
};

Status Refused(const char* why) {
  return Status(Code::kUnsupported,
                fmt::format("URLs need libcurl, which cannot be loaded: {}",
                            why == nullptr ? "no reason is given" : why));
}

// Stays loaded: a thread may be inside until the process ends.
Loaded Load() {
  Loaded loaded;
  void* const library = ::dlopen(kSoname, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    loaded.status = Refused(::dlerror());
    return loaded;
  }
  const auto find = [&]<typename Function>(Function*& function,
                                           const char* name) {
    function = reinterpret_cast<Function*>(::dlsym(library, name));
    if (function == nullptr && loaded.status.ok()) {
      loaded.status = Refused(::dlerror());
    }
  };
  Libcurl& curl = loaded.curl;
  find(curl.easy_cleanup, "curl_easy_cleanup");
  find(curl.easy_getinfo, "curl_easy_getinfo");
  find(curl.easy_init, "curl_easy_init");
  find(curl.easy_reset, "curl_easy_reset");
  find(curl.easy_setopt, "curl_easy_setopt");
  find(curl.easy_strerror, "curl_easy_strerror");
  find(curl.free, "curl_free");
  find(curl.getdate, "curl_getdate");
  find(curl.global_init, "curl_global_init");
  find(curl.multi_add_handle, "curl_multi_add_handle");
  find(curl.multi_cleanup, "curl_multi_cleanup");
  find(curl.multi_info_read, "curl_multi_info_read");
  find(curl.multi_init, "curl_multi_init");
  find(curl.multi_perform, "curl_multi_perform");
  find(curl.multi_poll, "curl_multi_poll");
  find(curl.multi_remove_handle, "curl_multi_remove_handle");
  find(curl.multi_setopt, "curl_multi_setopt");
  find(curl.slist_append, "curl_slist_append");
  find(curl.slist_free_all, "curl_slist_free_all");
  find(curl.url, "curl_url");
  find(curl.url_cleanup, "curl_url_cleanup");
  find(curl.url_get, "curl_url_get");
  find(curl.url_set, "curl_url_set");
  if (!loaded.status.ok()) return loaded;
  const CURLcode ready = curl.global_init(CURL_GLOBAL_DEFAULT);
  if (ready != CURLE_OK) {
    loaded.status = Refused(curl.easy_strerror(ready));
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
  if (when < 0) return std::nullopt;
  return when;
}

}  // namespace haulway::net
