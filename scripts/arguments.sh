# Sourced by each script, in the top folder. `--help` as the first argument
# prints the comment at the script's head; the script calls the other functions.

usage() { sed -n '2,/^[^#]/s/^# \{0,1\}//p' "scripts/$(basename "$0")"; }

# refuse MESSAGE: prints the message and the usage, and exits as the command
# does for wrong usage.
refuse() {
  printf '%s: %s\n\n' "scripts/$(basename "$0")" "$1" >&2
  usage >&2
  exit 4
}

# known_options ARGUMENT...: refuses options that the script's head does not
# mention.
known_options() {
  local word known
  known=" $(usage | tr -c a-z- ' ') "
  for word in "$@"; do
    case $word in
      -h | --help | -[0-9]*) ;;
      -*) [[ $known == *" ${word%%=*} "* ]] || refuse "unknown option $word" ;;
    esac
  done
}

# at_most COUNT ARGUMENT...: refuses more than COUNT arguments.
at_most() {
  [ $(($# - 1)) -le "$1" ] || refuse "unknown argument ${*: -1}"
}

# build PRESET [TARGET...]: configures and builds a preset of CMakePresets.json,
# and says before how much that is.
build() {
  local folder=build/$1 units
  mkdir -p build
  cmake --preset "$1" >"$folder.log" 2>&1 || {
    cat "$folder.log" >&2
    return 2
  }
  # Counts the objects that are missing: ninja -n stops at CMake's own steps.
  units=$(ninja -C "$folder" -t commands "${@:2}" | grep -o -- '-o [^ ]*\.o ' |
    while read -r _ object; do [ -e "$folder/$object" ] || echo; done | wc -l) || true
  if [ "$units" -gt 0 ]; then
    echo "compiling $units units of about 5 s with $(nproc) processors:" \
      "$(((units * 5 / $(nproc) + 59) / 60)) min, less with the compiler cache"
  fi
  ninja -C "$folder" "${@:2}"
}

# choose_environment: lets no variable pass that another machine may lack, or have
# with another value: only where to find programs, and where packages come from.
choose_environment() {
  local name
  for name in $(compgen -e); do
    case $name in
      PATH | HOME | TERM | PWD | PIP_* | *_proxy | *_PROXY) ;;
      SSL_CERT_FILE | SSL_CERT_DIR | CURL_CA_BUNDLE | REQUESTS_CA_BUNDLE) ;;
      *) unset "$name" 2>/dev/null || true ;;
    esac
  done
  export LANG=C.UTF-8
}

case ${1:-} in
  -h | --help)
    usage
    exit
    ;;
esac
