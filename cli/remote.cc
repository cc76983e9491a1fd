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
  part->add_option_function<std::string>(
          "--header", AddHeader,
          "\"NAME: VALUE\", sent to the host in the URL; repeatable")
      ->type_name("LINE")
      ->expected(1)
      ->trigger_on_parse();
  part->add_option_function<std::string>(
          "--bearer-env", TakeToken,
          "Environment variable with a bearer token for the host in the URL")
      ->type_name("NAME");
  part->add_option(
          "--netrc", remote.netrc,
          "File in the format of ~/.netrc with user names and passwords")
      ->type_name("FILE");
  part->add_option_function<std::string>(
          "--ca-file",
          [](const std::string& file) {
            // Who is trusted, and not who else the environment says.
            Remote().ca_file = file;
            Remote().ca_dir.clear();
          },
          "PEM file with the certificates to trust")
      ->type_name("FILE");
  part->add_option("--client-certificate", remote.client_certificate,
                   "PEM file with the client certificate")
      ->type_name("FILE");
  part->add_option(
          "--client-key", remote.client_key,
          "PEM file with the client's key, if it is not in the same file")
      ->type_name("FILE");
  part->add_flag_callback(
      "--insecure",
      [] {
        Remote().insecure = true;
        fmt::print(stderr,
                   "haulway: warning: certificates are not checked: others can "
                   "read and change the data\n");
      },
      "Accept any server certificate");
  part->add_option("--proxy", remote.proxy, "Proxy for URLs: http://HOST:PORT")
      ->type_name("URL");
  part->add_option("--connections", remote.connections,
                   "Maximum number of requests in flight")
      ->check(CLI::Range(1, 1000));
  part->add_option("--retries", remote.retries,
                   "How often a failed read or request is repeated")
      ->check(CLI::Range(0, 1000));
  part->add_option("--cache-dir", remote.cache_folder,
                   "Folder that caches what is read from URLs")
      ->type_name("FOLDER")
      ->envname("HAULWAY_LOAD_CACHE_DIR");
  AddSize(*part, "--cache-size", &remote.most_cached_bytes,
          "Maximum size of the cache folder", /*least=*/0);
  AddSeconds(part, "--stall-timeout", &RemoteOptions::stall_timeout,
             "Time after which a stalled request is repeated");
  AddSeconds(part, "--timeout", &RemoteOptions::deadline,
             "Time limit for each read, including its retries");
}

}  // namespace haulway::cli
