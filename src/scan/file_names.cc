// Design: tables of suffixes and whole names, which are compared in lower case
// with the last component of a path or URL. A name that is in no table proves
// nothing: a text of such a name is UNKNOWN, because a shell runs it. So what a
// table of code lacks matters only where the name is also that of a text.
//
// Alternative not taken: rules by folder, as for ".github/workflows". Members
// of archives and cached files often have no folder.

#include "scan/file_names.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>

namespace haulway::scan {

namespace {

// Suffixes of files that some program runs: interpreters, shells, dynamic
// loaders, installers, model servers, browsers.
constexpr std::string_view kCodeSuffixes[] = {
    // Python.
    ".py", ".pyc", ".pyd", ".pyi", ".pyo", ".pyw", ".pyx", ".pyz", ".pyzw",
    ".egg", ".ipynb", ".whl", ".conda",
    // Model servers and single files that contain a model and its program.
    ".llamafile", ".mar",
    // Shells and other interpreters.
    ".awk", ".bash", ".bat", ".cmd", ".csh", ".fish", ".groovy", ".ksh", ".lua",
    ".php", ".pl", ".pm", ".ps1", ".psd1", ".psm1", ".r", ".rb", ".sh", ".tcl",
    ".zsh", ".jl", ".rda", ".rdata", ".rds",
    // Windows and macOS.
    ".appref-ms", ".com", ".command", ".cpl", ".exe", ".hta", ".inf", ".jse",
    ".lnk", ".msi", ".msp", ".reg", ".scpt", ".scr", ".sct", ".tool", ".vbe",
    ".vbs", ".workflow", ".wsf", ".wsh", ".xll",
    // Loaders, linkers and compilers.
    ".a", ".class", ".dll", ".dylib", ".jar", ".ko", ".o", ".so", ".war",
    ".wasm", ".cu", ".ptx", ".cubin",
    // Packages. Their installers run scripts from the package.
    ".apk", ".appimage", ".crate", ".deb", ".gem", ".nupkg", ".pkg", ".rpm",
    ".run",
    // Build files and units.
    ".cmake", ".desktop", ".gradle", ".mk", ".service",
    // Browsers, office programs and typesetters.
    ".cjs", ".docm", ".htm", ".html", ".js", ".mht", ".mjs", ".pptm", ".svg",
    ".swf", ".tex", ".xhtml", ".xlsm"};

// Names of files that tell build tools, editors, installers and shells what to
// run.
constexpr std::string_view kCodeNames[] = {"cmakelists.txt",
                                           "ansible.cfg",
                                           "bentofile.yaml",
                                           "build.xml",
                                           "cargo.toml",
                                           "cog.yaml",
                                           "composer.json",
                                           "conda.yaml",
                                           "conda.yml",
                                           ".devcontainer.json",
                                           "devcontainer.json",
                                           "dockerfile",
                                           "dvc.yaml",
                                           "entry_points.txt",
                                           "environment.yaml",
                                           "environment.yml",
                                           "docker-compose.yml",
                                           "docker-compose.yaml",
                                           "compose.yaml",
                                           "compose.yml",
                                           "gemfile",
                                           "hatch.toml",
                                           "ipython_config.json",
                                           "jenkinsfile",
                                           "justfile",
                                           "kernel.json",
                                           "launch.json",
                                           "makefile",
                                           "gnumakefile",
                                           ".mcp.json",
                                           "mcp.json",
                                           "mlmodel",
                                           "mlproject",
                                           "mypy.ini",
                                           "package.json",
                                           "pixi.toml",
                                           "pom.xml",
                                           "pyproject.toml",
                                           "rakefile",
                                           "pip.conf",
                                           "pip.ini",
                                           "pytest.ini",
                                           "pylintrc.toml",
                                           "python_env.yaml",
                                           "pyvenv.cfg",
                                           "setup.cfg",
                                           "snakefile",
                                           "supervisord.conf",
                                           "tasks.json",
                                           "taskfile.yaml",
                                           "taskfile.yml",
                                           ".tmux.conf",
                                           "tmux.conf",
                                           "tox.ini",
                                           "tox.toml",
                                           "uwsgi.ini",
                                           "vagrantfile",
                                           ".bash_login",
                                           ".bash_logout",
                                           ".bash_profile",
                                           ".bashrc",
                                           ".envrc",
                                           ".gitconfig",
                                           ".gitmodules",
                                           ".npmrc",
                                           ".pre-commit-config.yaml",
                                           ".profile",
                                           ".vimrc",
                                           ".zprofile",
                                           ".zshenv",
                                           ".zshrc"};

// Suffixes of texts that programs read as data.
constexpr std::string_view kTextSuffixes[] = {
    ".asc",   ".bib",   ".bpe",    ".cff",      ".cfg",    ".conf",
    ".csv",   ".diff",  ".index",  ".ini",      ".jinja",  ".jinja2",
    ".json",  ".jsonl", ".labels", ".lock",     ".log",    ".markdown",
    ".md",    ".md5",   ".merges", ".metadata", ".names",  ".ndjson",
    ".patch", ".po",    ".proto",  ".rst",      ".sha1",   ".sha256",
    ".sig",   ".srt",   ".tag",    ".toml",     ".tokens", ".tsv",
    ".txt",   ".vocab", ".vtt",    ".xml",      ".yaml",   ".yml"};

// Names of texts without a suffix: files of repositories, and the small records
// of torch archives.
constexpr std::string_view kTextNames[] = {".dockerignore",
                                           ".format_version",
                                           ".gitattributes",
                                           ".gitignore",
                                           ".gitkeep",
                                           ".storage_alignment",
                                           "authors",
                                           "byteorder",
                                           "changelog",
                                           "changes",
                                           "checkpoint",
                                           "citation",
                                           "codeowners",
                                           "contributing",
                                           "contributors",
                                           "copying",
                                           "copyright",
                                           "extern_modules",
                                           "latest",
                                           "latest_checkpointed_iteration",
                                           "licence",
                                           "license",
                                           "maintainers",
                                           "merges",
                                           "news",
                                           "notice",
                                           "python_version",
                                           "readme",
                                           "serialization_id",
                                           "thanks",
                                           "todo",
                                           "use_policy",
                                           "version",
                                           "vocab"};

std::string_view LastPart(std::string_view name) {
  if (name.find("://") != name.npos) name = name.substr(0, name.find('?'));
  return name.substr(name.rfind('/') + 1);
}

const std::string_view* Find(std::span<const std::string_view> rows,
                             std::string_view wanted) {
  const auto found = std::ranges::find(rows, wanted);
  return found == rows.end() ? nullptr : &*found;
}

// Returns whether `name` is a number or a digest. Caches and torch archives
// name files so.
bool IsNumberOrDigest(std::string_view name) {
  if (name.empty()) return false;
  if (name.find_first_not_of("0123456789") == name.npos) return true;
  return name.size() >= 32 &&
         name.find_first_not_of("0123456789abcdef") == name.npos;
}

}  // namespace

std::string Lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

std::string SuffixOf(std::string_view name) {
  const std::string_view last = LastPart(name);
  const size_t dot = last.rfind('.');
  return dot == last.npos ? std::string() : Lower(last.substr(dot));
}

NameFacts FactsOfName(std::string_view name) {
  if (name.empty()) return {NameKind::kNone, {}};
  std::string last = Lower(LastPart(name));
  // Windows ignores dots and spaces at the end of a file name.
  while (last.ends_with('.') || last.ends_with(' ')) last.pop_back();
  const std::string suffix = SuffixOf(last);
  if (const auto* row = Find(kCodeNames, last)) return {NameKind::kCode, *row};
  if (const auto* row = Find(kCodeSuffixes, suffix)) {
    return {NameKind::kCode, *row};
  }
  if (last.find("requirements") != last.npos && suffix == ".txt") {
    return {NameKind::kCode, "requirements.txt"};
  }
  // The name of a shared library may end with a version: "libx.so.1".
  if (last.find(".so.") != last.npos) return {NameKind::kCode, ".so"};
  const bool is_text = Find(kTextSuffixes, suffix) != nullptr ||
                       Find(kTextNames, last) != nullptr ||
                       IsNumberOrDigest(last);
  return {is_text ? NameKind::kText : NameKind::kOther, {}};
}

bool IsNameOfTemplate(std::string_view name) {
  return Lower(LastPart(name)).find("template") != name.npos;
}

bool IsNameOfProgramText(std::string_view name) {
  constexpr std::string_view kSuffixes[] = {".cfg",   ".conf",   ".ini",
                                            ".jinja", ".jinja2", ".toml",
                                            ".xml",   ".yaml",   ".yml"};
  return Find(kSuffixes, SuffixOf(name)) != nullptr ||
         (FactsOfName(name).kind == NameKind::kText && IsNameOfTemplate(name));
}

bool IsNameOfMedia(std::string_view name) {
  constexpr std::string_view kSuffixes[] = {
      ".bmp", ".db",    ".dib", ".gif", ".jfif",   ".jpeg",
      ".jpg", ".model", ".png", ".spm", ".sqlite", ".sqlite3",
      ".v1",  ".v2",    ".v3",  ".wav", ".wave",   ".webp"};
  const NameKind kind = FactsOfName(name).kind;
  return kind == NameKind::kNone || kind == NameKind::kText ||
         Find(kSuffixes, SuffixOf(name)) != nullptr;
}

std::string_view WithoutCompression(std::string_view name) {
  for (const std::string_view suffix : {".gz", ".z", ".zlib", ".zst"}) {
    if (Lower(name).ends_with(suffix)) {
      name.remove_suffix(suffix.size());
      break;
    }
  }
  return name;
}

bool LeavesFolder(std::string_view name) {
  return name.starts_with('/') || name == ".." || name.starts_with("../") ||
         name.ends_with("/..") || name.find("/../") != name.npos;
}

}  // namespace haulway::scan
