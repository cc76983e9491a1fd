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

case ${1:-} in
  -h | --help)
    usage
    exit
    ;;
esac
