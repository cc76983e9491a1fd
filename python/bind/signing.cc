// Bindings of signed models: signing, verifying, and loading what is signed.

#include "haulway/signing.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/fields.h"
#include "base/gil.h"
#include "base/path_text.h"
#include "base/progress.h"
#include "bind/bindings.h"
#include "bind/loading.h"
#include "haulway/open.h"

namespace nb = nanobind;

namespace haulway::python {

namespace {

nb::object EncodedPath(nb::handle text) {
  const std::string bytes = PathBytes(nb::borrow<nb::str>(text));
  return nb::bytes(bytes.data(), bytes.size());
}

// The options of SignatureOptions, in which texts are paths.
SignatureOptions SignatureOf(nb::dict named) {
  SignatureOptions options;
  nb::dict values;
  for (const auto& [key, value] : named) {
    if (nb::isinstance<nb::tuple>(value)) {
      nb::list paths;
      for (const nb::handle one : value) paths.append(EncodedPath(one));
      values[key] = paths;
    } else if (nb::isinstance<nb::str>(value) &&
               nb::cast<std::string>(key) != "signature_scope") {
      values[key] = EncodedPath(value);
    } else {
      values[key] = value;
    }
  }
  SetFields(values, &options);
  return options;
}

SourceOptions SourceOf(nb::dict signature, nb::dict remote,
                       const std::string& variant, const nb::str& base) {
  SourceOptions options;
  options.io = IoMode::kPread;
  options.remote = RemoteOptionsOf(std::move(remote));
  options.variant = variant;
  options.base = PathBytes(base);
  options.signature = SignatureOf(std::move(signature));
  return options;
}

std::shared_ptr<SignedModel> OpenSigned(const nb::str& path, nb::dict signature,
                                        nb::dict remote,
                                        const std::string& variant,
                                        const nb::str& base) {
  const std::string uri = PathBytes(path);
  const SourceOptions options =
      SourceOf(std::move(signature), std::move(remote), variant, base);
  return Minding([&] { return OpenSignedModel(uri, options); });
}

void Compare(SignedModel& model, bool all, int threads) {
  std::atomic<bool> cancel{false};
  const auto compare = [&]() -> Result<bool> {
    HAULWAY_TRY(model.Compare(
        all ? SignatureScope::kAll : SignatureScope::kRead, threads, &cancel));
    return true;
  };
  std::optional<Result<bool>> result;
  if (!RunMindingSignals([&] { result.emplace(compare()); }, &cancel)) {
    throw nb::python_error();
  }
  Unwrap(std::move(*result));
}

nb::dict VerifySigned(const nb::str& path, nb::dict signature, nb::dict remote,
                      nb::dict opening, int threads, nb::object progress) {
  const std::string uri = PathBytes(path);
  VerifySignatureOptions options;
  options.source =
      SourceOf(std::move(signature), std::move(remote), "", nb::str(""));
  options.open = OpenOptionsOf(std::move(opening));
  options.threads = threads;
  Progress told(std::move(progress));
  told.Attach(&options);
  return FieldsDict(told.Run([&] { return VerifySignature(uri, options); }));
}

nb::dict SignModel(const nb::str& model, const nb::str& out,
                   const std::string& private_key, nb::object passphrase,
                   const std::string& certificate,
                   std::vector<std::string> chain, const std::string& hash,
                   std::optional<uint64_t> shard_size,
                   std::vector<std::string> ignore_paths, bool ignore_git_paths,
                   bool allow_symlinks, int threads, nb::object progress) {
  SignOptions options;
  options.private_key = private_key;
  if (!passphrase.is_none()) {
    const auto bytes = nb::cast<nb::bytes>(passphrase);
    options.passphrase = Secret(std::string_view(bytes.c_str(), bytes.size()));
  }
  options.signing_certificate = certificate;
  options.certificate_chain = std::move(chain);
  options.hash = FromWord<ModelHash>(hash).value_or(ModelHash::kSha256);
  options.shard_size = shard_size;
  options.ignore_paths = std::move(ignore_paths);
  options.ignore_git_paths = ignore_git_paths;
  options.allow_symlinks = allow_symlinks;
  options.threads = threads;
  Progress told(std::move(progress));
  told.Attach(&options);
  const std::string from = PathBytes(model), to = PathBytes(out);
  return FieldsDict(told.Run([&] { return Sign(from, to, options); }));
}

}  // namespace

void BindSigning(nb::module_& module) {
  nb::class_<SignedModel>(module, "SignedModel")
      .def_prop_ro(
          "facts",
          [](const SignedModel& self) { return FieldsDict(self.facts()); })
      .def("compare", &Compare, nb::arg("all"), nb::arg("threads"))
      .def("keep_last", [](SignedModel& self) { self.KeepLast(); });
  module.def("open_signed", &OpenSigned);
  module.def("verify_signed", &VerifySigned, nb::arg("path"),
             nb::arg("signature"), nb::arg("remote"), nb::arg("opening"),
             nb::arg("threads"), nb::arg("progress").none());
  module.def("sign", &SignModel, nb::arg("model"), nb::arg("out"),
             nb::arg("private_key"), nb::arg("passphrase").none(),
             nb::arg("signing_certificate"), nb::arg("certificate_chain"),
             nb::arg("hash"), nb::arg("shard_size").none(),
             nb::arg("ignore_paths"), nb::arg("ignore_git_paths"),
             nb::arg("allow_symlinks"), nb::arg("threads"),
             nb::arg("progress").none());
}

}  // namespace haulway::python
