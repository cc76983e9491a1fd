"""What building from source says where packages are missing."""

import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_all_missing_packages_are_named_at_once(tmp_path):
    missing = {"fmt": "libfmt-dev", "simdjson": "libsimdjson-dev",
               "OpenSSL": "libssl-dev", "CLI11": "libcli11-dev",
               "GTest": "libgtest-dev", "ZLIB": "zlib1g-dev"}
    done = subprocess.run(
        ["cmake", "-S", ROOT, "-B", tmp_path, "-G", "Ninja",
         "-DPKG_CONFIG_EXECUTABLE=/nonexistent",
         *(f"-DCMAKE_DISABLE_FIND_PACKAGE_{name}=ON" for name in missing)],
        capture_output=True, text=True, timeout=300)
    assert done.returncode != 0
    said = done.stderr.replace("\n", " ")
    for package in (*missing.values(), "pkg-config", "libdeflate-dev",
                    "libsodium-dev", "liburing-dev", "scripts/setup"):
        assert f" {package}" in said, done.stderr
