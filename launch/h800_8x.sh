#!/usr/bin/env bash
# The paper's run on one node of GPUs (--target; 8 x H800 if none is given): a vLLM judge on some, the policy on the others.
#
#   bash launch/h800_8x.sh --model /models/Qwen3-VL-8B-Instruct --manifest /data/train.jsonl --dry-run
#   bash launch/h800_8x.sh --model /models/Qwen3-VL-8B-Instruct --manifest /data/clips.jsonl --modality video
#   bash launch/h800_8x.sh --model ... --manifest ... --judge-url http://judge:8000     # all 8 GPUs for the policy
#   bash launch/h800_8x.sh --model ... --manifest ... --judge-turns                     # all 8 for both, in turns
#
# Checks everything first, starts the judge, waits until it judges, trains, and ends both in order on SIGTERM, Ctrl-C or
# failure. A terminal that closes ends nothing. Run the same command again to go on after an interruption. Logs lie in
# RUN.logs/HOST/, a folder for each node. What follows `--` goes to launch/train.py, for instance section.key=value.
# The small predicates are called by `check`, the handlers by `trap`.
# shellcheck disable=SC2329
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source launch/cluster.sh

usage() {
  cat <<'TEXT'
usage: bash launch/h800_8x.sh --model DIR --manifest FILE [options] [-- section.key=value ...]

  --model DIR             Qwen3-VL checkpoint of the policy
  --manifest FILE         JSON Lines with the training samples, or a folder of pictures or clips
  --modality image|video  default image
  --config FILE           on top of configs/paper/MODALITY.yaml, for instance configs/lora.yaml; may be repeated, later
                          files win. Whatever they say, micro-batches have one group per policy GPU, and as many decode
                          at once as fit (docs/rollout.md); behind -- other multiples may be given
                          (grpo.groups_per_micro_batch, rollout.groups_per_batch)
  --run-dir DIR           default runs/vcap-MODALITY
  --target NAME           the node, as the table of hardware names it (launch/target.py; default h800x8): what follows is
                          its own, here that of h800x8
  --policy-gpus LIST      default 0,1,2,3,4,5; with a judge elsewhere 0,1,2,3,4,5,6,7
  --judge-gpus LIST       default 6,7; with a judge elsewhere none
  --judge-model DIR       default: the policy's checkpoint
  --judge-url URL         a judge that the trainer is to ask, instead of the local one; may be repeated. With
                          --judge-gpus as well, a local judge is started and must be among the addresses
  --judge-host ADDRESS    where the local judge listens (default 127.0.0.1; any other needs VCAP_JUDGE_KEY)
  --judge-port PORT       of its first server (default 8000)
  --judge-turns           policy and judge on the same GPUs, in turns: the judge sleeps until a step's captions are drawn
                          (docs/gpu_node.md); optimizer and reference wait in the host's memory (rollout.offload)
  --policy-memory SHARE   of each policy GPU that JAX may take (default 0.92; with --judge-turns 0.62, videos 0.58)
  --judge-memory SHARE    of each judge GPU that vLLM may take (default 0.90; with --judge-turns 0.30, of videos
                          0.34)
  --judge-max-model-len N tokens of a question and its answer (default: what serve.py takes for the modality)
  --judge-images-per-prompt N
                          pictures of a question (default: 8)
  --judge-tensor-parallel N
                          so many neighbouring judge GPUs share a server, for a judge that one cannot hold (default 1)
  --judge-option WORD     a further option of gpu_judge/serve.py as one word, such as --quantization=fp8 or
                          --stall-timeout-s=900; may be repeated
  --judge-timeout S       until the judge judges (default 1800)
  --stop-timeout S        for the trainer to save after SIGTERM (default 1800: one step)
  --python FILE           default .venv/bin/python (made by VCAP_EXTRAS=cuda13 bash launch/quickstart.sh --help)
  --vllm FILE             default .venv-vllm/bin/vllm (see gpu_judge/README.md)
  --dry-run               check and print everything, start nothing
  --elsewhere             with --dry-run: leave out the checks that need the node itself
TEXT
}

model='' manifest='' modality=image configs=() run_dir='' policy_gpus='' judge_gpus='' judge_model=''
judge_urls=() judge_host=127.0.0.1 judge_port=8000 policy_memory='' target=h800x8 judge_memory='' judge_turns=false
judge_timeout=1800 stop_timeout=1800 python=.venv/bin/python vllm=.venv-vllm/bin/vllm dry_run=false elsewhere=false more=()
judge_max_model_len='' judge_images_per_prompt='' judge_tensor_parallel=1 judge_options=()
while (($#)); do
  case $1 in
    --help | -h) usage && exit 0 ;;
    --dry-run) dry_run=true && shift && continue ;;
    --elsewhere) elsewhere=true && shift && continue ;;
    --judge-turns) judge_turns=true && shift && continue ;;
    --) shift && more=("$@") && break ;;
    --config) need_value "$1" $# && configs+=("$1" "$2") ;;
    --model | --manifest | --modality | --run-dir | --target | --policy-gpus | --judge-gpus | --judge-model | \
      --judge-host | --judge-port | --policy-memory | --judge-memory | --judge-timeout | --stop-timeout | --python | \
      --vllm | --judge-max-model-len | --judge-images-per-prompt | --judge-tensor-parallel)
      need_value "$1" $#
      name=${1#--}
      printf -v "${name//-/_}" '%s' "$(at_home "$2")"
      ;;
    --judge-url) need_value "$1" $# && judge_urls+=("$2") ;;
    --judge-option) need_value "$1" $# && judge_options+=("$2") ;;
    *) echo "error: $1 is no option of this script; put what is for launch/train.py behind --" >&2 && exit 2 ;;
  esac
  shift 2
done
for required in model manifest; do
  if [[ -z ${!required} ]]; then
    usage >&2
    echo "error: --$required is missing" >&2
    exit 2
  fi
done
if [[ $modality != image && $modality != video ]]; then
  echo "error: --modality is $modality; it must be image or video" >&2
  exit 2
fi
for name in judge_port judge_timeout stop_timeout judge_tensor_parallel; do
  need_whole "--${name//_/-}" "${!name}"
done
for name in policy_memory judge_memory; do
  if [[ -n ${!name} ]]; then need_share "--${name//_/-}" "${!name}"; fi
done
if ((judge_tensor_parallel < 1)); then
  echo "error: --judge-tensor-parallel is 0; give 1 or more" >&2
  exit 2
fi
if $elsewhere && ! $dry_run; then
  echo "error: --elsewhere is for a dry run" >&2
  exit 2
fi
read_target "$python" "$target"
# shellcheck disable=SC2154  # set by read_target
if [[ $target_platform != cuda ]]; then
  echo "error: --target $target is no node of GPUs; launch/tpu.sh is for TPUs" >&2
  exit 2
fi
if $judge_turns; then
  if ((${#judge_urls[@]})) || [[ -n $judge_gpus && $judge_gpus != "$policy_gpus" ]]; then
    echo "error: --judge-turns has the judge on the policy's GPUs: leave out --judge-url and --judge-gpus" >&2
    exit 2
  fi
  # What the gradient takes at its peak, and of what is left a judge's weights, the caches of its longest judgement and
  # what vLLM computes with (vcap plan, serve.py --check).
  : "${policy_gpus:=$target_gpus}"
  if [[ $modality == image ]]; then : "${policy_memory:=0.62}" "${judge_memory:=0.30}"; fi
  : "${policy_memory:=0.58}" "${judge_memory:=0.34}"
  judge_gpus=$policy_gpus
  # The rest is for what neither counts: contexts of CUDA, what libraries and links take, gaps.
  # shellcheck disable=SC2154  # set by read_target
  if awk -v policy="$policy_memory" -v judge="$judge_memory" -v usable="$target_usable" \
    'BEGIN { exit policy + judge <= usable + 0.000001 }'; then
    echo "error: --policy-memory $policy_memory and --judge-memory $judge_memory come to more than the $target_usable of a" \
      "GPU's memory that can be used, and JAX keeps its share while the judge is awake: lower one of them" >&2
    exit 2
  fi
fi
: "${judge_memory:=0.90}"
: "${run_dir:=runs/vcap-$modality}"
run_dir=$(without_slash "$run_dir")
: "${judge_model:=$model}" "${policy_memory:=$target_usable}"
if ((${#judge_urls[@]})); then
  : "${policy_gpus:=$target_gpus}"
else
  : "${policy_gpus:=$target_policy_gpus}" "${judge_gpus:=$target_judge_gpus}"
  judge_at=$judge_host
  if [[ $judge_host == 0.0.0.0 ]]; then judge_at=127.0.0.1; fi
  for ((i = 0; i < $(count_list "$judge_gpus") / judge_tensor_parallel; i++)); do
    judge_urls+=("http://$judge_at:$((judge_port + i))")
  done
fi
# Nodes share the run folder, but neither a judge nor a log.
logs=$run_dir.logs/$(hostname)
gpus=$(count_list "$policy_gpus")
# Counts of groups are those of all nodes together, which slurm.sbatch numbers behind --.
hosts=1
if [[ " ${more[*]} " =~ .*" distributed.processes="([1-9][0-9]{0,8})" " ]]; then hosts=${BASH_REMATCH[1]}; fi
groups=()
turns=()
if $judge_turns; then
  # Beside what waits on the host 3 groups of pictures, or one of a clip, need no more memory than the gradient.
  at_once=$([[ $modality == image ]] && echo 3 || echo 1)
  set_groups "$modality" 1 "$gpus" "${more[@]}" rollout.groups_per_batch=
  turns=(judge.sleep_mode=true 'rollout.offload=[optimizer,reference]')
  if [[ " ${more[*]} " != *" rollout.groups_per_batch="* ]]; then turns+=("rollout.groups_per_batch=$((gpus * at_once))"); fi
else
  set_groups "$modality" "$hosts" "$gpus" "${more[@]}"
fi

judge_command=("$python" gpu_judge/serve.py --backend vllm --vllm "$vllm" --model "$judge_model" --gpus "$judge_gpus"
  --modality "$modality" --host "$judge_host" --port "$judge_port" --gpu-memory-utilization "$judge_memory"
  --log-dir "$logs/judge" --start-timeout-s "$judge_timeout")
if $judge_turns; then judge_command+=(--sleep-mode); fi
if [[ -n $judge_max_model_len ]]; then judge_command+=(--max-model-len "$judge_max_model_len"); fi
if [[ -n $judge_images_per_prompt ]]; then judge_command+=(--images-per-prompt "$judge_images_per_prompt"); fi
if ((judge_tensor_parallel > 1)); then judge_command+=(--tensor-parallel-size "$judge_tensor_parallel"); fi
# serve.py takes the last of two, and the trainer would look for the judge where the first has it.
owned="${judge_command[*]} --sleep-mode --max-model-len --images-per-prompt --tensor-parallel-size --api-key-env --port-file"
for word in "${judge_options[@]}"; do
  if [[ $word != --?* || " $owned --exit-with-parent --print --check " == *" ${word%%=*} "* ]]; then
    echo "error: --judge-option $word: give an option of gpu_judge/serve.py that this script has none for, --NAME=VALUE" >&2
    exit 2
  fi
done
if ((${#judge_options[@]})) && [[ -z $judge_gpus ]]; then
  echo "error: --judge-option is for a judge on this node, and there is none" >&2
  exit 2
fi
judge_command+=("${judge_options[@]}")
key=() judge=()
if [[ $judge_host != 127.0.0.1 ]]; then judge_command+=(--api-key-env VCAP_JUDGE_KEY); fi
# The folder of the file with the addresses is made when the run begins, after the checks.
judge_check=("${judge_command[@]}" "$(if $elsewhere; then echo --print; else echo --check; fi)")
judge_command+=(--port-file "$logs/judge.addresses")
if [[ -n ${VCAP_JUDGE_KEY:-} ]]; then key=(judge.api_key_env=VCAP_JUDGE_KEY); fi
# An empty list would take away the judge that a --config names.
if ((${#judge_urls[@]})); then judge=("judge.urls=$(join_urls "${judge_urls[@]}")"); fi
settings=(--config "configs/paper/$modality.yaml" "${configs[@]}" "model.path=$model" "data.manifest=$manifest"
  "${judge[@]}" "${key[@]}" "${groups[@]}" "${turns[@]}" "${more[@]}")
train_arguments=(--run-dir "$run_dir" --resume "${settings[@]}")
# Numbers are nvidia-smi's, as for the judge; CUDA's own begin with the fastest card. The CPU stays beside the GPUs for what
# is done on the host; that JAX computes on the GPUs is checked.
# JAX refuses two names of its share, of which the shell may have the other.
train_environment=("--unset=XLA_CLIENT_MEM_FRACTION" "CUDA_DEVICE_ORDER=PCI_BUS_ID" "CUDA_VISIBLE_DEVICES=$policy_gpus" "XLA_PYTHON_CLIENT_MEM_FRACTION=$policy_memory" "JAX_PLATFORMS=cuda,cpu")
if (((gpus * hosts) & (gpus * hosts - 1))); then
  flag=$(flag_for_odd_meshes "$python" 2>/dev/null) || true # a Python without JAX is told by the checks
  if [[ -n $flag ]]; then train_environment+=("XLA_FLAGS=${XLA_FLAGS:+$XLA_FLAGS }$flag"); fi
fi

# -- checks: all of them, before anything starts -------------------------------------------------------------------
gpu_exists() { nvidia-smi --id="$1" --query-gpu=name --format=csv,noheader; }
gpu_idle() { [[ -z $(nvidia-smi --id="$1" --query-compute-apps=pid --format=csv,noheader) ]]; }
# Of names other than numbers nothing is known.
gpus_are_given() {
  local gpu
  [[ $CUDA_VISIBLE_DEVICES =~ ^[0-9]+(,[0-9]+)*$ ]] || return 0
  for gpu in $(tr , '\n' <<<"$policy_gpus,$judge_gpus"); do
    [[ ,$CUDA_VISIBLE_DEVICES, == *",$gpu,"* ]] || return 1
  done
}
no_gpu_twice() { [[ -z $(tr , '\n' <<<"$policy_gpus${judge_gpus:+,$judge_gpus}" | sort | uniq -d) ]]; }
local_judge_is_asked() {
  local port url asked
  for ((port = judge_port; port < judge_port + $(count_list "$judge_gpus") / judge_tensor_parallel; port++)); do
    asked=false
    for url in "${judge_urls[@]}"; do
      if [[ $url =~ :$port(/v1)?/*$ ]]; then asked=true; fi
    done
    $asked || return 1
  done
}
jax_computes_on_gpus() {
  [[ $(CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=$policy_gpus jax_devices "$python" cuda) == "gpu $gpus" ]]
}

echo "checks"
before_the_run=(--target "$target" --devices "$gpus")
if ! $judge_turns; then
  check "no GPU is given twice" "judge and policy need GPUs of their own (or --judge-turns): --policy-gpus, --judge-gpus" no_gpu_twice
fi
if ! $elsewhere; then
  before_the_run+=(--host-memory)
  check "nvidia-smi answers" "install the NVIDIA driver; a node without GPUs cannot run this" nvidia-smi
  # A cluster that does not hide the other GPUs of a node says so which are the job's.
  if [[ -n ${CUDA_VISIBLE_DEVICES:-} ]]; then
    check "CUDA_VISIBLE_DEVICES has GPUs $policy_gpus${judge_gpus:+ and $judge_gpus}" \
      "it is $CUDA_VISIBLE_DEVICES: choose from these by --policy-gpus and --judge-gpus, or unset it" gpus_are_given
  fi
  # Where nvidia-smi does not answer, nothing is known of any GPU.
  if nvidia-smi >/dev/null 2>&1; then
    for gpu in $(tr , '\n' <<<"$policy_gpus,$judge_gpus" | sort -u); do
      check "GPU $gpu exists" "see nvidia-smi; choose with --policy-gpus and --judge-gpus" gpu_exists "$gpu"
      check "GPU $gpu is idle" "nvidia-smi shows what runs on it: end that" gpu_idle "$gpu"
    done
  fi
  check "JAX of $python computes on $gpus GPUs" \
    "VCAP_EXTRAS=cuda13 bash launch/quickstart.sh --help makes it (cuda12 with a driver older than 580); or --python" \
    jax_computes_on_gpus
fi
if [[ -n $judge_gpus ]]; then
  judges=$(($(count_list "$judge_gpus") / judge_tensor_parallel))
  before_the_run+=(--judges "$judges" --judge-model "$judge_model")
  for word in "${judge_options[@]}"; do
    if [[ $word == --media-cache-gb=* ]]; then before_the_run+=(--judge-cache-gb "${word#*=}"); fi
  done
  check "the trainer asks the judge of this node" \
    "--judge-url must name its $judges servers too, from port $judge_port on; or leave out --judge-gpus" local_judge_is_asked
fi
check "policy checkpoint $model" "give the folder of a Qwen3-VL checkpoint, or of a run, with --model" holds_policy "$model"
preflight "$python" "${before_the_run[@]}" --run-dir "$run_dir" "${settings[@]}"
if $elsewhere; then
  if [[ -n $judge_gpus ]]; then check "options of the judge" "its message: $(quoted "${judge_check[@]}")" "${judge_check[@]}"; fi
  echo "  left out: GPUs, memory, judge"
elif [[ -n $judge_gpus ]]; then
  check "judge (checkpoint, vLLM, memory, ports)" "its message: $(quoted "${judge_check[@]}")" "${judge_check[@]}"
  if [[ $judge_host != 127.0.0.1 ]]; then
    check "VCAP_JUDGE_KEY is set" "beyond loopback the judge needs a key: export VCAP_JUDGE_KEY=..." test -n "${VCAP_JUDGE_KEY:-}"
  fi
else
  for url in "${judge_urls[@]}"; do
    check "judge at $url answers" "start it, or set VCAP_JUDGE_KEY if it wants a key" answers "$url"
  done
fi

echo "run"
echo "  logs    $logs/"
if [[ -n $judge_gpus ]]; then echo "  judge   $(quoted "${judge_command[@]}")"; fi
echo "  trainer $(quoted env "${train_environment[@]}" "$python" launch/train.py "${train_arguments[@]}")"
finish_checks
if $dry_run; then
  echo "dry run: everything is in order, nothing was started"
  exit 0
fi

# -- the run -------------------------------------------------------------------------------------------------------
judge_pid='' train_pid='' shown_pid='' stopping=false
shut_down() {
  end_process "$train_pid" trainer "$stop_timeout"
  end_process "$judge_pid" judge 120
  wait "$shown_pid" 2>/dev/null || true
}
# The handler only notes the signal: `wait` returns at once, and the loops below decide.
trap 'stopping=true' TERM INT
trap shut_down EXIT

mkdir -p "$logs"
outlive_terminal "$logs/launch.log"
say "kill -TERM $$ ends this in order; it goes on when its terminal closes"
if [[ -n $judge_gpus ]]; then
  rm -f "$logs/judge.addresses"
  # Sessions of their own: Ctrl-C reaches this script alone, which then ends them in order. The judge must not keep its
  # GPUs where this script was killed; setsid does not fork here, so the script is its parent.
  setsid "${judge_command[@]}" --exit-with-parent $$ >>"$logs/judge.log" 2>&1 &
  judge_pid=$!
  say "the judge starts on GPUs $judge_gpus; its log is $logs/judge.log"
  began=$SECONDS
  until [[ -s $logs/judge.addresses ]]; do
    if $stopping; then say "stopped by a signal while the judge started" && exit 1; fi
    if ! kill -0 "$judge_pid" 2>/dev/null; then
      say "the judge ended before it judged; the end of $logs/judge.log:"
      tail -n 20 "$logs/judge.log" || true
      exit 1
    fi
    if ((SECONDS - began > judge_timeout)); then
      say "the judge did not judge within $judge_timeout s (--judge-timeout); the end of $logs/judge.log:"
      tail -n 20 "$logs/judge.log" || true
      exit 1
    fi
    pause
  done
  say "the judge judges at $(tr '\n' ' ' <"$logs/judge.addresses")after $((SECONDS - began)) s"
  if $judge_turns; then say "it sleeps from now on but for its turns"; fi
fi

start_shown "$logs/train.log" env "${train_environment[@]}" "$python" launch/train.py "${train_arguments[@]}"
train_pid=$started_pid
say "the trainer runs on GPUs $policy_gpus; its log is $logs/train.log"
judge_reported=false
while kill -0 "$train_pid" 2>/dev/null; do
  if $stopping; then
    say "a signal: the trainer finishes its step and saves"
    break
  fi
  if [[ -n $judge_pid ]] && ! $judge_reported && ! kill -0 "$judge_pid" 2>/dev/null; then
    say "the judge has ended (see $logs/judge.log); the trainer waits judge.outage_timeout_s for it, then saves and ends"
    judge_reported=true
  fi
  pause
done
if $stopping; then
  end_process "$train_pid" trainer "$stop_timeout"
  say "the trainer ended with status $end_status"
  if ((end_status)); then say "run this command again to go on"; fi
  exit "$end_status"
fi
status=0
wait "$train_pid" || status=$?
wait "$shown_pid" || true
say "the trainer ended with status $status"
exit "$status"
