"""Programs for which /dev/shm is small, read-only or missing."""

import os
import subprocess

# How it is made, and the error of opening a file there.
KINDS = {
    "1 MB": ("mount -t tmpfs -o size=1m none /dev/shm", "ENOSPC"),
    "read-only": ("mount -t tmpfs -o ro none /dev/shm", "EROFS"),
    "none": ("mount -t tmpfs none {scratch} && for name in null urandom; do "
             ": > {scratch}/$name; mount --bind /dev/$name {scratch}/$name; done && "
             "mount --rbind {scratch} /dev && test ! -e /dev/shm", "ENOENT"),
}


def other_shm(kind, preloaded, tmp_path):
    """Returns a command and variables with which a program sees this
    /dev/shm."""
    mount, refusal = KINDS[kind]
    namespace = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-Urm"]
    if not subprocess.run([*namespace, "true"], capture_output=True).returncode:
        scratch = tmp_path / "dev"
        scratch.mkdir()
        return [*namespace, "sh", "-ec",
                mount.format(scratch=scratch) + ' && exec "$0" "$@"'], {}
    # Mounting is impossible in a container or chroot; make opening fail
    # instead.
    return [], {"LD_PRELOAD": preloaded("refuse_shm", f"-DREFUSAL={refusal}")}
