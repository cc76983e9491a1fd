"""haulway.sign: signing a model."""

from __future__ import annotations

from .. import _haulway
from .._options import READING, check_flag, one_of, pem, size
from .._reading.report import as_report
from .._reading.source import path_of, path_to_write
from .._secrets import passphrase as check_passphrase

_HASHES = ("sha256", "blake2b", "blake3")


def sign(model, out="model.sig", *, private_key, passphrase=None,
         signing_certificate=None, certificate_chain=(), hash="sha256",
         shard_size=None, ignore_paths=(), ignore_git_paths=True,
         allow_symlinks=False, threads=None, progress=None):
    """Signs a model: writes a file that says which files it has, with a digest
    of each, in the format of OpenSSF model-signing.

    model: a folder or file.
    out: the signature to write; it appears in one step.
    private_key: a path, or PEM as bytes; on the curve P-256, P-384 or P-521.
    passphrase: of an encrypted key, a str or bytes.
    signing_certificate, certificate_chain: the signer's certificate, and those
        of its issuers, one or several: paths, or PEM as bytes.
    hash: the digest of each file: "sha256", which every verifier reads,
        "blake2b" or "blake3".
    shard_size: digest files in pieces of this size, of which each can be
        verified alone; a number, or text such as "1GB".
    ignore_paths: paths to leave out, each with everything below it, from the
        model's folder or absolute; one or several. The signature is left out.
    ignore_git_paths: leave out .git, .gitattributes, .github and .gitignore at
        the root of the model.
    allow_symlinks: follow symbolic links to files, which are refused otherwise.
    threads: number of threads; by default as many as this process may use.
    progress: called as progress(bytes done, bytes in all).

    Returns a report: `file`, `out`, `subject` (name, sha256), `method`,
    `hash_type`, `shard_size`, `files`, `bytes`, `ignore_paths`. Raises Error;
    no file is written then.
    """
    paths = READING["ignore_paths"].check("ignore_paths", ignore_paths)
    chain = READING["certificate_chain"].check(
        "certificate_chain", certificate_chain)
    return as_report(_haulway.sign(
        path_of(model, "model"), path_to_write(out, "out"),
        pem("private_key", private_key),
        None if passphrase is None
        else check_passphrase("passphrase", passphrase),
        "" if signing_certificate is None
        else pem("signing_certificate", signing_certificate),
        list(chain), one_of(*_HASHES)("hash", hash),
        None if shard_size is None else size("shard_size", shard_size, 1),
        list(paths), check_flag("ignore_git_paths", ignore_git_paths),
        check_flag("allow_symlinks", allow_symlinks),
        0 if threads is None else READING["threads"].check("threads", threads),
        READING["progress"].check("progress", progress),
    ))
