// Options for access to URLs.

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "command.h"
#include "field_options.h"
#include "haulway/open.h"
#include "open_output.h"
#include "tell.h"

namespace haulway::cli {

RemoteOptions& Remote() {
  static RemoteOptions remote = RemoteOptionsFromEnvironment();
  return remote;
}

namespace {

// Global, as Remote() is.
bool& Overwrites() {
  static bool overwrites = false;
  return overwrites;
}

void AddHeader(const std::string& line) {
  const size_t colon = line.find(':');
  if (colon == line.npos || colon == 0) {
    // Do not print the line, which may be a secret.
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

}  // namespace

CLI::Option* AddOverwrite(CLI::App& app) {
  return app.add_flag("--overwrite", Overwrites(),
                      "Replace what the URL names already: a prefix in Redis "
                      "too, which is refused otherwise");
}

Status CheckOutput(const std::string& out) {
  if (out != "-" || ::isatty(STDOUT_FILENO) == 0) return Status();
  return Status(Code::kInvalidArgument,
                "standard output is a terminal: expected a file, or a pipe");
}

Result<std::unique_ptr<ByteSink>> OpenOutput(const std::string& out,
                                             FileSinkOptions file) {
  HAULWAY_TRY(CheckOutput(out));
  if (Overwrites()) file.existing = Existing::kReplace;
  return OpenSink(out, {.file = file, .remote = Remote()});
}

void AddRemote(CLI::App& app) {
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
  AddFields(*part, &Remote());
  // An explicit CA file replaces the folder from the environment.
  part->get_option("--ca-file")->each([](const std::string&) {
    Remote().ca_dir.clear();
  });
  part->get_option("--insecure")->each([](const std::string&) {
    Tell(
        "haulway: warning: certificates are not checked: others can read and "
        "change the data\n");
  });
  constexpr const char* kCacheDir = "HAULWAY_LOAD_CACHE_DIR";
  part->get_option("--cache-dir")->envname(kCacheDir);  // For the help.
  // Since CLI11 2.4, a group whose options are not used takes none from the
  // environment.
  if (const char* folder = std::getenv(kCacheDir)) {
    Remote().cache_folder = folder;
  }
}

}  // namespace haulway::cli
