# shellcheck shell=bash
# Sourced by the scripts that start a run on real hardware: checks that are all made before anything is started,
# commands that a dry run prints instead, and processes that are ended in the right order.

say() { echo "[$(date +%H:%M:%S)] $*"; }

problems=()

# check WHAT REMEDY COMMAND... : notes a problem, with its remedy, if the command fails.
check() {
  local what=$1 remedy=$2
  shift 2
  if "$@" >/dev/null 2>&1; then
    echo "  ok      $what"
  else
    echo "  PROBLEM $what"
    problems+=("$what: $remedy")
  fi
}

# Ends the script with status 2 if any check failed; all problems are told at once.
finish_checks() {
  if ((${#problems[@]} == 0)); then return 0; fi
  echo "error: ${#problems[@]} of the checks failed:" >&2
  printf '  - %s\n' "${problems[@]}" >&2
  exit 2
}

# The words of a command as a shell would read them again.
quoted() { printf '%q ' "$@"; }

# need_value OPTION COUNT: for the reading of options; ends the script if an option lacks its value.
need_value() {
  if (($2 < 2)); then
    echo "error: $1 needs a value" >&2
    exit 2
  fi
}

# count_list 0,1,2 -> 3
count_list() {
  local IFS=,
  # shellcheck disable=SC2086
  set -- $1
  echo $#
}

# set_groups COUNT WORD... : fills the array `groups` with settings for one group per device of COUNT, in rollout and
# update, except for what a WORD (a section.key=value for launch/train.py) sets already.
set_groups() {
  local count=$1 name
  shift
  groups=()
  for name in rollout.groups_per_batch grpo.groups_per_micro_batch; do
    # shellcheck disable=SC2034  # read by the scripts that source this
    if [[ " $* " != *" $name="* ]]; then groups+=("$name=$count"); fi
  done
}

# join_urls URL... -> [URL, URL], the way a list is written in an override.
join_urls() {
  local IFS=,
  echo "[$*]"
}

# A process that is gone or was never started is fine; one that does not end within the seconds is killed.
end_process() {
  local pid=$1 name=$2 seconds=$3 waited=0
  if [[ -z $pid ]] || ! kill -0 "$pid" 2>/dev/null; then return 0; fi
  say "ending $name (process $pid), at most $seconds s"
  kill -TERM "$pid" 2>/dev/null || true
  while kill -0 "$pid" 2>/dev/null; do
    if ((waited >= seconds)); then
      say "$name did not end within $seconds s and is killed"
      kill -KILL "$pid" 2>/dev/null || true
      break
    fi
    sleep 1
    waited=$((waited + 1))
  done
  wait "$pid" 2>/dev/null || true
}

config_loads() { # PYTHON ARGUMENTS-OF-TRAIN...
  "$1" launch/train.py --print-config "${@:2}"
}

answers() { # URL: a server in OpenAI's format, with the key of VCAP_JUDGE_KEY if there is one
  local url=${1%/}
  # The key goes through a file descriptor: an argument would be there for everybody to read.
  curl --silent --fail --max-time 10 --output /dev/null \
    --config <(if [[ -n ${VCAP_JUDGE_KEY:-} ]]; then echo "header = \"Authorization: Bearer $VCAP_JUDGE_KEY\""; fi) \
    "${url%/v1}/v1/models"
}
