# shellcheck shell=bash
# Sourced by the scripts that start a run on real hardware: checks that are all made before anything is started,
# commands that a dry run prints instead, and processes that are ended in the right order.

# A terminal that is gone must not end what goes on without it.
say() { echo "[$(date +%H:%M:%S)] $*" 2>/dev/null || true; }

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

# holds_policy FOLDER: whether it is that of a checkpoint, or of a run with checkpoints.
holds_policy() { [[ -f $1/config.json || (-f $1/config.yaml && -d $1/checkpoints) ]]; }

# The words of a command as a shell would read them again.
quoted() { printf '%q ' "$@"; }

# need_value OPTION COUNT: for the reading of options; ends the script if an option lacks its value.
need_value() {
  if (($2 < 2)); then
    echo "error: $1 needs a value" >&2
    exit 2
  fi
}

# need_whole OPTION VALUE: ends the script unless the value is a whole number. Arithmetic of the shell takes names, octal
# numbers and nothing at all, and says nothing where it compares with "30m".
need_whole() {
  if [[ ! $2 =~ ^(0|[1-9][0-9]{0,8})$ ]]; then
    echo "error: $1 is $2; give a whole number" >&2
    exit 2
  fi
}

# need_share OPTION VALUE: the same for a share between 0 and 1.
need_share() {
  if [[ ! $2 =~ ^0?\.[0-9]*[1-9][0-9]*$ ]]; then
    echo "error: $1 is $2; give a share between 0 and 1, such as 0.9" >&2
    exit 2
  fi
}

# at_home '~/runs/mine' -> /home/me/runs/mine, as launch/train.py reads it: in quotes the shell leaves it as it is.
at_home() { echo "${1/#\~\//$HOME/}"; }

# without_slash runs/mine/ -> runs/mine. What lies beside a folder is named after it.
without_slash() {
  local folder=$1
  while [[ $folder == ?*/ ]]; do folder=${folder%/}; done
  echo "$folder"
}

# count_list 0,1,2 -> 3
count_list() {
  local IFS=,
  # shellcheck disable=SC2086
  set -- $1
  echo $#
}

# groups_at_once MODALITY HOSTS PER_HOST -> how many groups of the paper's runs each of these GPUs decodes side by side:
# what its 80 GB hold beside its share of the state, which is smaller on more GPUs (docs/plans). Several hosts keep a copy
# of the parameters each. No more than a step's 32 groups give every GPU.
groups_at_once() {
  local modality=$1 hosts=$2 per_host=$3 fit=1 most
  if ((hosts == 1 && per_host >= 8)); then
    if [[ $modality == image ]]; then fit=4; else fit=2; fi
  elif ((per_host >= 6)) && [[ $modality == image ]]; then
    fit=3
  fi
  most=$(((32 + hosts * per_host - 1) / (hosts * per_host)))
  echo $((fit < most ? fit : most))
}

# singles_at_once MODALITY HOSTS PER_HOST -> the same of groups of one caption, references and held-out samples; 0 where
# no plan says that more of these fit.
singles_at_once() {
  local fit
  if [[ $1 == image ]]; then fit=(8 12); else fit=(2 4); fi
  if (($2 > 1 || $3 < 6)); then echo 0; else echo "${fit[$3 >= 8]}"; fi
}

# set_groups MODALITY HOSTS PER_HOST WORD... : fills the array `groups` with settings for PER_HOST GPUs on each of HOSTS,
# except for what a WORD (a section.key=value for launch/train.py) sets already: one group per GPU in the update, and in
# rollout what groups_at_once and singles_at_once say. Who says how many groups a step decodes at once says it of single
# captions too: memory may be what is short.
set_groups() {
  local count=$(($2 * $3)) at_once single name
  at_once=$(groups_at_once "$1" "$2" "$3") single=$(singles_at_once "$1" "$2" "$3")
  shift 3
  groups=()
  for name in rollout.groups_per_batch=$((count * at_once)) grpo.groups_per_micro_batch=$count \
    rollout.single_groups=$((count * single)); do
    if [[ $name == *=0 ]]; then continue; fi
    if [[ $name == rollout.single_groups=* && " $* " == *" rollout.groups_per_batch="* ]]; then continue; fi
    # shellcheck disable=SC2034  # read by the scripts that source this
    if [[ " $* " != *" ${name%=*}="* ]]; then groups+=("$name"); fi
  done
}

# read_target PYTHON NAME : sets target_devices, target_gpus and so on, what the table of hardware says of NAME
# (launch/target.py); ends the script if it says nothing.
read_target() {
  local told
  if ! command -v "$1" >/dev/null; then
    echo "error: there is no Python at $1: bash launch/quickstart.sh --help tells how to make one, or give --python" >&2
    exit 2
  fi
  if ! told=$("$1" launch/target.py "$2"); then
    echo "error: --target $2 was not read by $1: see launch/target.py, or give another Python with --python" >&2
    exit 2
  fi
  local line
  while read -r line; do declare -g "$line"; done <<<"$told"
}

# preflight PYTHON ARGUMENT... : what launch/preflight.py finds, one line for each of its checks, as `check` says them.
preflight() {
  local state what remedy seen=0 wrong=0 command=("$1" launch/preflight.py "${@:2}")
  while IFS=$'\t' read -r state what remedy; do
    case $state in
      ok) echo "  ok      $what" && seen=1 ;;
      PROBLEM) echo "  PROBLEM $what" && problems+=("$what: $remedy") && seen=1 wrong=1 ;;
    esac
  done < <("${command[@]}" 2>/dev/null)
  # Its status is not 0 where it has told a problem; else it has broken off, and what it had not looked at may be wrong.
  if { ! wait "$!" && ((!wrong)); } || ((!seen)); then check "configuration" "its message: $(quoted "${command[@]}")" false; fi
}

# jax_devices PYTHON PLATFORM : the backend that JAX computes on and how many devices of this host it has, "gpu 6". Asked
# for CUDA beside the CPU, JAX takes the CPU without a word where it finds no GPU; so look, whatever JAX_PLATFORMS says.
jax_devices() {
  JAX_PLATFORMS=$2,cpu XLA_PYTHON_CLIENT_PREALLOCATE=false timeout 300 \
    "$1" -c 'import jax; print(jax.default_backend(), jax.local_device_count())'
}

# flag_for_odd_meshes PYTHON : what XLA_FLAGS must have where devices are no power of two; empty with a JAX that needs nothing.
flag_for_odd_meshes() {
  "$1" -c 'from vcap_jax.parallel.sharding import flag_for_odd_meshes as flag; print(flag())'
}

# join_urls URL... -> [URL, URL], the way a list is written in an override; an IPv6 address has brackets of its own.
join_urls() {
  local IFS=, url urls=()
  for url; do
    if [[ $url == *\[* ]]; then url="\"$url\""; fi
    urls+=("$url")
  done
  echo "[${urls[*]}]"
}

# A process that is gone or was never started is fine; one that does not end within the seconds is killed. Its exit status
# is in end_status then.
end_process() {
  local pid=$1 name=$2 seconds=$3 waited=0
  if [[ -z $pid ]]; then return 0; fi
  if kill -0 "$pid" 2>/dev/null; then
    say "ending $name (process $pid), at most $seconds s"
    kill -TERM "$pid" 2>/dev/null || true
  fi
  while kill -0 "$pid" 2>/dev/null; do
    if ((waited >= seconds)); then
      say "$name did not end within $seconds s and is killed"
      kill -KILL "$pid" 2>/dev/null || true
      break
    fi
    pause
    waited=$((waited + 1))
  done
  end_status=0
  # shellcheck disable=SC2034  # read by the scripts that source this
  wait "$pid" 2>/dev/null || end_status=$?
}

# A second, also where Ctrl-C reaches `sleep` as well.
pause() { sleep 1 || true; }

# outlive_terminal LOG : from here on the script goes on when its terminal closes; what it says then is in LOG.
outlive_terminal() {
  trap '' PIPE
  # shellcheck disable=SC2064  # the name as it is now
  trap "exec >>$(printf %q "$1") 2>&1" HUP
}

# start_shown LOG COMMAND... : starts a command in a session of its own, its output appended to LOG, and shows what comes
# into LOG from then on. The command writes to the file alone, so nothing happens to it when nobody watches any more. Sets
# started_pid, and shown_pid, which ends after it.
start_shown() {
  local log=$1 size
  shift
  : >>"$log"
  size=$(stat --format=%s "$log")
  setsid "$@" >>"$log" 2>&1 &
  started_pid=$!
  tail --bytes="+$((size + 1))" --follow --pid="$started_pid" "$log" 2>/dev/null &
  # shellcheck disable=SC2034  # read by the scripts that source this
  shown_pid=$!
}

answers() { # URL: a server in OpenAI's format, with the key of VCAP_JUDGE_KEY if there is one
  local url=${1%/} host
  host=${url#*://}
  [[ $host == */* ]] || url+=/v1 # as the trainer has it: an address with a path is whole
  # The key goes through a file descriptor: an argument would be there for everybody to read. The trainer asks without a
  # proxy, whatever http_proxy says; through one another way would be tried, and the key given to it.
  curl --silent --fail --max-time 10 --noproxy '*' --output /dev/null \
    --config <(if [[ -n ${VCAP_JUDGE_KEY:-} ]]; then echo "header = \"Authorization: Bearer $VCAP_JUDGE_KEY\""; fi) \
    "$url/models"
}
