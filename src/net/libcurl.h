#ifndef HAULWAY_NET_LIBCURL_H_
#define HAULWAY_NET_LIBCURL_H_

#include <curl/curl.h>

#include <ctime>
#include <optional>
#include <string_view>

#include "haulway/status.h"

namespace haulway::net {

// The functions of libcurl, named without "curl_". The library is loaded when
// the first URL is used: with its dependencies (Kerberos, LDAP, GnuTLS and some
// twenty more) loading takes 4 of the 7 ms that a program spends on loading
// libraries, and programs that read local files never need it. In a static
// build (HAULWAY_STATIC_LIBRARIES), libcurl is linked statically.
struct Libcurl {
  decltype(&curl_easy_cleanup) easy_cleanup;
  decltype(&curl_easy_getinfo) easy_getinfo;
  decltype(&curl_easy_init) easy_init;
  decltype(&curl_easy_reset) easy_reset;
  decltype(&curl_easy_setopt) easy_setopt;
  decltype(&curl_easy_strerror) easy_strerror;
  decltype(&curl_free) free;
  decltype(&curl_getdate) getdate;
  decltype(&curl_global_init) global_init;
  decltype(&curl_multi_add_handle) multi_add_handle;
  decltype(&curl_multi_cleanup) multi_cleanup;
  decltype(&curl_multi_info_read) multi_info_read;
  decltype(&curl_multi_init) multi_init;
  decltype(&curl_multi_perform) multi_perform;
  decltype(&curl_multi_poll) multi_poll;
  decltype(&curl_multi_remove_handle) multi_remove_handle;
  decltype(&curl_multi_setopt) multi_setopt;
  decltype(&curl_slist_append) slist_append;
  decltype(&curl_slist_free_all) slist_free_all;
  decltype(&curl_url) url;
  decltype(&curl_url_cleanup) url_cleanup;
  decltype(&curl_url_get) url_get;
  decltype(&curl_url_set) url_set;
};

// Loads and initialises libcurl, once per process; any thread may call it.
// Fails with kUnsupported and the system's reason; a failure is permanent.
Status LoadLibcurl();

// Requires: LoadLibcurl() succeeded. ParseUrl() and HttpClient::Make() call it,
// so code that has a URL or a client may call Curl().
const Libcurl& Curl();

// Parses an HTTP date (RFC 9110, 5.6.7). Returns seconds since 1970. Returns
// nullopt for other text, and for years of more than four digits, which the RFC
// excludes.
std::optional<std::time_t> ParseHttpDate(std::string_view text);

}  // namespace haulway::net

#endif  // HAULWAY_NET_LIBCURL_H_
