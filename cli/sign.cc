#include <fmt/format.h>

#include <cstdlib>
#include <string>
#include <utility>

#include "command.h"
#include "haulway/signing.h"
#include "output.h"
#include "progress.h"
#include "signature.h"

namespace haulway::cli {
namespace {

struct SignVerbOptions : Options {
  SignOptions sign;
  std::string out = "model.sig";
  uint64_t shard_size = 0;
};

int SignModel(SignVerbOptions& options) {
  const std::string& file = options.files.front();
  SignOptions& sign = options.sign;
  if (options.shard_size != 0) sign.shard_size = options.shard_size;
  sign.passphrase = options.open.key.passphrase;
  sign.threads = options.threads;
  sign.cancel = &interrupted;
  sign.progress = Progress(file, options.no_progress);
  MakeAbsolute(&sign.ignore_paths);
  const auto signed_model = Sign(file, options.out, sign);
  if (!signed_model.ok()) return FailSigned(options, signed_model.status());
  const SignReport& report = signed_model.value();
  if (options.json) {
    Json().Value(report).Print();
  } else {
    fmt::print("signed {}: {}, {}, in {}\n", Escape(report.file),
               Counted(report.files, "file"), Size(report.bytes, options.bytes),
               Escape(report.out));
  }
  return kDone;
}

Runner AddSign(CLI::App& app) {
  const auto options = MakeOptions<SignVerbOptions>(app);
  AddBytes(app, *options);
  app.add_option_function<std::string>(
         "MODEL",
         [options = options.get()](const std::string& file) {
           options->files = {file};
         },
         "The folder or file to sign")
      ->required();
  app.add_option("--private-key", options->sign.private_key,
                 "PEM file with the private key: P-256, P-384 or P-521")
      ->type_name("PEM")
      ->required();
  app.add_option("--passphrase-file", options->key.passphrase_file,
                 "File with the passphrase of an encrypted private key")
      ->type_name("FILE");
  app.add_option("--signing-certificate", options->sign.signing_certificate,
                 "PEM file with the signer's certificate, for a signature "
                 "that a certificate chain verifies")
      ->type_name("PEM");
  AddList(app, "--certificate-chain", options->sign.certificate_chain,
          "PEM file with certificates of the signer's issuers; repeatable")
      ->type_name("PEM");
  app.add_option("-o,--out", options->out,
                 "The signature to write; default: model.sig")
      ->type_name("FILE");
  OneOf(app.add_option_function<std::string>(
            "--hash",
            [options = options.get()](const std::string& name) {
              options->sign.hash =
                  FromWord<ModelHash>(name).value_or(ModelHash::kSha256);
            },
            "Digest of each file: sha256, which every verifier reads, blake2b "
            "or blake3; default: sha256"),
        {"sha256", "blake2b", "blake3"})
      ->type_name("NAME");
  AddSize(app, "--shard-size", &options->shard_size,
          "Digest files in shards of this size, of which each can be verified "
          "alone");
  AddList(app, "--ignore-paths", options->sign.ignore_paths,
          "Path in the model to leave out, with all below it; repeatable")
      ->type_name("PATH");
  app.add_flag_callback(
      "--no-ignore-git-paths",
      [options = options.get()] { options->sign.ignore_git_paths = false; },
      "Sign .git, .gitattributes, .github and .gitignore at the root of the "
      "model too");
  app.add_flag("--allow-symlinks", options->sign.allow_symlinks,
               "Follow symbolic links to files");
  AddThreads(app, *options);
  AddProgress(app, *options);
  return {options, [options] { return SignModel(*options); }};
}

}  // namespace

extern const Verb kSign = {
    "sign",
    "Sign a model: write a file that says which files it has, with a digest of "
    "each",
    "haulway sign model/ --private-key key.pem -o model/model.sig\n"
    "haulway verify model/ --signature model/model.sig --public-key key.pub",
    AddSign,
    /*cancels=*/true};

}  // namespace haulway::cli
