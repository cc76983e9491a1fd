// How verbs reach what is behind a URL.

#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <string>

#include "command.h"

namespace haulway::cli {

RemoteOptions& Remote() {
  static RemoteOptions remote = RemoteOptionsFromEnvironment();
  return remote;
}

namespace {

void AddHeader(const std::string& line) {
  const size_t colon = line.find(':');
  if (colon == line.npos || colon == 0) {
    // The line may be a secret.
    throw CLI::ValidationError("--header", "expected NAME: VALUE");
  }
  const size_t value = line.find_first_not_of(" \t", colon + 1);
  Remote().headers.push_back(
      {line.substr(0, colon), value == line.npos ? "" : line.substr(value)});
}

void TakeToken(const std::string& variable) {
  const char* const token = std::getenv(variable.c_str());
  if (token == nullptr || *token == '\0') {
    throw CLI::ValidationError("--bearer-env", variable + " is not set");
  }
  Remote().bearer_token = token;
}

void AddSeconds(CLI::App* app, const char* name,
                std::chrono::milliseconds RemoteOptions::*field,
                const char* about) {
  app->add_option_function<double>(
         name,
         [field](const double& seconds) {
           Remote().*field =
               std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
         },
         about)
      ->check(CLI::Range(0.001, 1e6))
      ->type_name("SECONDS");
}

}  // namespace

void AddRemote(CLI::App& app) {
  RemoteOptions& remote = Remote();
  CLI::App* const part = app.add_option_group("URLs");
  part->add_option_function<std::string>("--header", AddHeader,
                                         "NAME: VALUE for a URL's host; "
                                         "repeatable")
      ->type_name("LINE")
      ->expected(1)
      ->trigger_on_parse();
  part->add_option_function<std::string>(
          "--bearer-env", TakeToken,
          "An environment variable with the token of a URL's host")
      ->type_name("NAME");
  part->add_option("--netrc", remote.netrc,
                   "A file of names and passwords of hosts")
      ->type_name("FILE");
  part->add_option_function<std::string>(
          "--ca-file",
          [](const std::string& file) {
            // Who is trusted, and not who else the environment says.
            Remote().ca_file = file;
            Remote().ca_dir.clear();
          },
          "Certificates to trust, as PEM")
      ->type_name("FILE");
  part->add_option("--client-certificate", remote.client_certificate,
                   "To show to servers, as PEM")
      ->type_name("FILE");
  part->add_option("--client-key", remote.client_key,
                   "Of that certificate, if it is in another file")
      ->type_name("FILE");
  part->add_flag_callback(
      "--insecure",
      [] {
        Remote().insecure = true;
        fmt::print(stderr,
                   "haulway: warning: certificates are not checked, so that "
                   "others may read and change what passes\n");
      },
      "Take any certificate");
  part->add_option("--proxy", remote.proxy, "For URLs")->type_name("URL");
  part->add_option("--connections", remote.connections,
                   "Requests in flight at once")
      ->check(CLI::Range(1, 1000));
  part->add_option("--retries", remote.retries,
                   "Of a request that brought nothing")
      ->check(CLI::Range(0, 1000));
  part->add_option("--cache-dir", remote.cache_folder,
                   "A folder that keeps what is read of URLs")
      ->type_name("FOLDER")
      ->envname("HAULWAY_LOAD_CACHE_DIR");
  AddSize(*part, "--cache-size", &remote.most_cached_bytes,
          "What that folder holds at most", /*least=*/0);
  AddSeconds(part, "--stall-timeout", &RemoteOptions::stall_timeout,
             "Until a request that stalls is made again");
  AddSeconds(part, "--timeout", &RemoteOptions::deadline,
             "For each read with its retries");
}

}  // namespace haulway::cli
