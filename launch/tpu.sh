#!/usr/bin/env bash
# The paper's run on TPU: on one host, or on all hosts of a slice. The judge runs elsewhere (a GPU node, any endpoint).
#
#   bash launch/tpu.sh --model DIR --manifest FILE --judge-url http://10.0.0.5:8000 --dry-run
#   bash launch/tpu.sh --model DIR --manifest FILE --judge-url http://10.0.0.5:8000          # on the TPU host
#   bash launch/tpu.sh --slice NAME --zone ZONE ... (the same options)                       # from a machine with gcloud
#   bash launch/tpu.sh --slice NAME --zone ZONE --run-dir DIR --stop                         # saves and ends
#   bash launch/tpu.sh --run-dir DIR --stop                                                  # the same, on the TPU host
#
# With --slice the same command runs on every host of the slice, in --remote-dir; checkpoint, data and run folder must be
# on storage that all hosts share. Run it again to go on after an interruption. A lost connection, to a host or between gcloud
# and the slice, ends no trainer: its log lies in RUN.logs/, and --stop ends it. A key for the judge is taken from
# VCAP_JUDGE_KEY, or from a file: with --slice only from a file, on storage that the hosts share. What follows `--` goes
# to launch/train.py.
# The small predicates are called by `check`, the handlers by `trap`.
# shellcheck disable=SC2329
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source launch/cluster.sh

usage() {
  cat <<'TEXT'
usage: bash launch/tpu.sh --model DIR --manifest FILE --judge-url URL [options] [-- section.key=value ...]

  --model DIR             Qwen3-VL checkpoint of the policy
  --manifest FILE         JSON Lines with the training samples, or a folder of pictures or clips
  --judge-url URL         a judge (see gpu_judge/README.md); may be repeated
  --judge-key-file FILE   holds the judge's key, and nothing else (default: the key in VCAP_JUDGE_KEY, if it is set)
  --modality image|video  default image
  --config FILE           on top of configs/tpu/MODALITY.yaml; may be repeated, later files win
  --target NAME           the slice, as the table of hardware names it (launch/target.py), such as v5p-16: its kernels and
                          its hosts are checked as well
  --run-dir DIR           default runs/vcap-MODALITY
  --python FILE           default .venv/bin/python (made by VCAP_EXTRAS=tpu bash launch/quickstart.sh --help)
  --slice NAME --zone ZONE [--project NAME] [--remote-dir DIR]
                          run on all hosts of this slice through gcloud; the repository is in --remote-dir (vcap-jax)
  --stop                  ask the trainers on the slice, or the one on this host, to save and end
  --dry-run               check and print everything, start nothing
TEXT
}

model='' manifest='' modality=image configs=() run_dir='' python=.venv/bin/python slice='' zone='' project=''
remote_dir=vcap-jax judge_urls=() judge_key_file='' stop=false dry_run=false target='' more=() forwarded=() pod=false
while (($#)); do
  case $1 in
    --help | -h) usage && exit 0 ;;
    --dry-run) dry_run=true && shift && continue ;;
    --stop) stop=true && shift && continue ;;
    --pod) pod=true && shift && continue ;; # set by --slice on its hosts
    --) shift && more=("$@") && break ;;
    --slice | --zone | --project | --remote-dir) need_value "$1" $# && name=${1#--} && printf -v "${name//-/_}" '%s' "$2" ;;
    --config) need_value "$1" $# && configs+=("$1" "$2") && forwarded+=("$1" "$2") ;;
    --model | --manifest | --modality | --run-dir | --target | --python | --judge-key-file)
      need_value "$1" $#
      name=${1#--}
      printf -v "${name//-/_}" '%s' "$2"
      forwarded+=("$1" "$2")
      ;;
    --judge-url) need_value "$1" $# && judge_urls+=("$2") && forwarded+=("$1" "$2") ;;
    *) echo "error: $1 is no option of this script; put what is for launch/train.py behind --" >&2 && exit 2 ;;
  esac
  shift 2
done
if [[ $modality != image && $modality != video ]]; then
  echo "error: --modality is $modality; it must be image or video" >&2
  exit 2
fi
: "${run_dir:=runs/vcap-$modality}"
run_dir=$(without_slash "$run_dir")

# -- on a slice: the same command on every host -------------------------------------------------------------------
if [[ -n $slice ]]; then
  gcloud=(gcloud compute tpus tpu-vm ssh "$slice" --worker=all ${zone:+"--zone=$zone"} ${project:+"--project=$project"})
  check "gcloud is on PATH" "install the Google Cloud CLI, or run this on each host with --pod" command -v gcloud
  check "--zone is given" "name the zone of the slice" test -n "$zone"
  if $stop; then
    remote="cd $(quoted "$remote_dir")&& $(quoted bash launch/tpu.sh --run-dir "$run_dir" --stop)"
  else
    again=(bash launch/tpu.sh --pod "${forwarded[@]}")
    if $dry_run; then again+=(--dry-run); fi
    if ((${#more[@]})); then again+=(-- "${more[@]}"); fi
    remote="cd $(quoted "$remote_dir")&& $(quoted "${again[@]}")"
    # In a command it would stand in gcloud's logs and in the hosts' lists of processes.
    check "no key in VCAP_JUDGE_KEY" "put it into a file that only you can read, on the hosts' storage: --judge-key-file" \
      test -z "${VCAP_JUDGE_KEY:-}"
  fi
  echo "on every host of $slice: $remote"
  echo "by: $(quoted "${gcloud[@]}") --command ..."
  finish_checks
  # A dry run goes to the hosts too: what it checks is there.
  exec "${gcloud[@]}" --command "$remote"
fi

# -- on this host --------------------------------------------------------------------------------------------------
# Here and not above: a slice's hosts have homes of their own.
for name in model manifest run_dir target python judge_key_file; do
  printf -v "$name" '%s' "$(at_home "${!name}")"
done
logs=$run_dir.logs
pid_file=$logs/train-$(hostname).pid
# The number in the file may be another process's by now: after a reboot, or long after the trainer has ended.
trainer_is_here() {
  local words=()
  [[ -s $pid_file ]] || return 1
  mapfile -d '' -t words 2>/dev/null <"/proc/$(<"$pid_file")/cmdline" || return 1
  [[ " ${words[*]} " == *" launch/train.py --run-dir $run_dir "* ]]
}
if $stop; then
  if ! trainer_is_here; then
    echo "error: no trainer of $run_dir runs on $(hostname)" >&2
    exit 1
  fi
  say "the trainer, process $(<"$pid_file"), finishes its step and saves; its log is ${pid_file%.pid}.log"
  kill -TERM "$(<"$pid_file")"
  exit 0
fi
for required in model manifest; do
  if [[ -z ${!required} ]]; then
    usage >&2
    echo "error: --$required is missing" >&2
    exit 2
  fi
done
if [[ -s $judge_key_file ]]; then
  VCAP_JUDGE_KEY=$(<"$judge_key_file")
  export VCAP_JUDGE_KEY
fi
key=() judge=()
if [[ -n ${VCAP_JUDGE_KEY:-} ]]; then key=(judge.api_key_env=VCAP_JUDGE_KEY); fi
# An empty list would take away the judge that a --config names.
if ((${#judge_urls[@]})); then judge=("judge.urls=$(join_urls "${judge_urls[@]}")"); fi
pod_settings=()
# Beside the run folder, which all hosts share: the repository is a clone of its own on each.
if $pod; then pod_settings=(distributed.automatic=true "compilation_cache=$run_dir.compiled"); fi
settings=(--config "configs/tpu/$modality.yaml" "${configs[@]}" "model.path=$model" "data.manifest=$manifest"
  "${judge[@]}" "${key[@]}" "${pod_settings[@]}" "${more[@]}")
train_arguments=(--run-dir "$run_dir" --resume "${settings[@]}")

tpu_is_here() { compgen -G "/dev/accel*" || compgen -G "/dev/vfio/[0-9]*"; }
# On a slice JAX would wait for all other hosts; there JAX_PLATFORMS alone keeps the trainer off the CPU.
jax_computes_on_tpus() {
  if $pod; then
    "$python" -c 'import importlib.util as u, sys; sys.exit(u.find_spec("libtpu") is None)'
  else
    seen=$(jax_devices "$python" tpu) && [[ $seen == "tpu "* ]]
  fi
}
no_trainer_here() { ! trainer_is_here; }
run_dir_is_shared() {
  local folder=$run_dir
  while [[ ! -d $folder ]]; do folder=$(dirname "$folder"); done
  [[ $(stat --file-system --format=%T "$folder") =~ nfs|fuse|lustre|gpfs|smb|ceph ]]
}
echo "checks"
check "a TPU is attached" "no /dev/accel* or /dev/vfio: run this on a TPU VM, or use --slice" tpu_is_here
check "no trainer of $run_dir runs here" "follow it: tail -f ${pid_file%.pid}.log; or end it: --stop" no_trainer_here
seen=''
check "JAX of $python computes on TPUs" \
  "a slice of several hosts needs --slice; no other process may hold them; VCAP_EXTRAS=tpu bash launch/quickstart.sh --help makes that JAX; or --python" \
  jax_computes_on_tpus
check "policy checkpoint $model" "give the folder of a Qwen3-VL checkpoint, or of a run, with --model" holds_policy "$model"
before_the_run=(--host-memory)
if [[ -n $target ]]; then
  read_target "$python" "$target"
  before_the_run+=(--target "$target")
  if [[ -n $seen ]]; then
    # shellcheck disable=SC2154  # set by read_target
    check "JAX sees the $target_per_host chips of a host of $target" "name the slice that this is: --target" \
      test "$seen" == "tpu $target_per_host"
  fi
# The trainers of a slice compare the groups with the devices of all hosts themselves.
elif [[ -n $seen ]]; then before_the_run+=(--devices "${seen#tpu }"); fi
preflight "$python" "${before_the_run[@]}" --run-dir "$run_dir" "${settings[@]}"
if [[ -n $judge_key_file ]]; then
  check "--judge-key-file $judge_key_file" "a file that holds the key, readable on this host" test -s "$judge_key_file"
fi
for url in "${judge_urls[@]}"; do
  check "judge at $url answers" "start it, open its port to this host, give its key if it wants one" answers "$url"
done
if $pod; then
  # A bucket's file system has not the locks that the store of judgements needs.
  check "run folder $run_dir on shared storage" \
    "all hosts write one checkpoint: mount NFS, or a bucket with judge.store=FILE on the host's own disk" run_dir_is_shared
fi
echo "run"
echo "  log     $logs/train-$(hostname).log"
echo "  trainer $(quoted "$python" launch/train.py "${train_arguments[@]}")"
finish_checks
if $dry_run; then
  echo "dry run: everything is in order, nothing was started"
  exit 0
fi
mkdir -p "$logs"
train_pid='' stopping=false
trap 'stopping=true' TERM INT
outlive_terminal "$logs/launch-$(hostname).log"
# The CPU stays beside the TPU for what is done on the host; that JAX computes on the TPU is checked.
start_shown "${pid_file%.pid}.log" env JAX_PLATFORMS=tpu,cpu "$python" launch/train.py "${train_arguments[@]}"
train_pid=$started_pid
echo "$train_pid" >"$pid_file"
say "the trainer is process $train_pid; it goes on when this terminal or connection closes"
while kill -0 "$train_pid" 2>/dev/null; do
  if $stopping; then
    say "a signal: the trainer finishes its step and saves"
    kill -TERM "$train_pid" 2>/dev/null || true
    stopping=false
  fi
  pause
done
status=0
wait "$train_pid" || status=$?
rm -f "$pid_file"
wait "$shown_pid" || true
exit "$status"
