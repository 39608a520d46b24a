#!/usr/bin/env bash
# One visit to a GPU machine: unpacks what was packed, goes on with a study for a limited time, brings its records back.
#   visit.sh LIMIT_SECONDS STUDY_NAME [hydra overrides ...]
# Run it in the checkout. Safe to call again: the study resumes. Exit code: the runner's (0 finished, 4 or 130 call again).
#   PACKS            folder of the archives made by pack.py; an archive STUDY_NAME.tar.xz of an earlier visit there is taken up again
#   OUT              what comes back: STUDY_NAME.tar.xz, visit.txt, drills.json
#   ENGINE_VERSION   which engine-VERSION.tar.xz (default 0.5.15.post1)
#   EXECUTOR         ray where its archive is there, else inline
#   DRILLS           failures on purpose after a finished study: "port scheduler", or empty
#   PROBE            1: measure the collectives first (action=probe), once a machine
#   HOME_FOR_VISIT   where all is unpacked (default /tmp/visit)
#   DRY_RUN          1: the simulated engine of this checkout instead of a GPU and an engine's archive; ENGINE=simulated_h200 or simulated_h200_single makes it as slow as H200s were
#   PYTHON           the interpreter (default python3): the engine's and the runner's
set -u
limit=$1 study=$2; shift 2
version=${ENGINE_VERSION:-0.5.15.post1} home=${HOME_FOR_VISIT:-/tmp/visit} dry=${DRY_RUN:-} python=${PYTHON:-$(command -v python3)}
packs=${PACKS:-} site="$home/site-$version"
mkdir -p "$home" "$OUT"
unpack() { [ -d "$home/$2" ] || tar xJf "$packs/$1.tar.xz" -C "$home" --no-same-owner || exit 1; }
[ -n "$dry" ] || unpack "engine-$version" "site-$version"
[ -n "$dry" ] && [ ! -f "$packs/runner.tar.xz" ] || unpack runner runner-site
[ -f "$packs/ray.tar.xz" ] && unpack ray ray-site
if [ ! -d "$home/mlruns" ] && [ -f "$packs/$study.tar.xz" ]; then
  mkdir -p "$home/mlruns" && tar xJf "$packs/$study.tar.xz" -C "$home/mlruns" --no-same-owner && echo "took up the records of an earlier visit"
fi
mkdir -p "$home/mlruns"
path=""
for folder in "$home/runner-site" "$home/ray-site"; do [ -d "$folder" ] && path="$path$folder:"; done
# NVLink multicast can put a shared host's GPUs out of service: off for every process of a visit, whatever the node's file says.
export PYTHONPATH="$path${PYTHONPATH:-}" TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NCCL_NVLS_ENABLE=0 PYTHONUNBUFFERED=1
executor=${EXECUTOR:-inline}
if [ -z "${EXECUTOR:-}" ] && [ -d "$home/ray-site" ]; then
  "$python" -c 'import ray, jsonschema, google.protobuf' 2>> "$OUT/visit.err" && executor=ray || echo "Ray does not import here (visit.err): inline executor"
fi
common=("execution.lock_dir=$home/lock" "tracking.root=$home/mlruns" tracking.enabled=false "study.name=$study")
if [ -n "$dry" ]; then
  engine=("engine=${ENGINE:-simulated}" "dry_run=true" "++engine.version=$version")
  [ -d "$home/runner-site" ] && engine+=("++engine.extra_python_path=[$home/runner-site]")
  what="SIMULATED"
else
  engine=("++engine.version=$version" "++engine.python=$python" "++engine.extra_python_path=[$site]" "++engine.cache_root=$home/caches")
  what=$("$python" -c 'import torch; print(f"torch {torch.__version__}, {torch.cuda.device_count()} GPUs")')
fi
echo "SGLang $version; $executor executor; $what" | tee "$OUT/visit.txt"
if [ -n "${PROBE:-}" ] && [ ! -f "$home/probe.json" ]; then
  "$python" -m runner "$@" "${engine[@]}" "${common[@]}" action=probe > "$home/probe.json" || rm -f "$home/probe.json"
  [ -f "$home/probe.json" ] && cp "$home/probe.json" "$OUT/"
fi
# SIGTERM ends the launch in work and leaves the study to be taken up; the server's guard outlives even a SIGKILL of the runner.
timeout --preserve-status --kill-after=90 --signal=TERM "$limit" \
  "$python" -m runner "$@" "${engine[@]}" "${common[@]}" "execution.executor=$executor" execution.quiet=true yes=true
code=$?
echo "runner ended with $code" | tee -a "$OUT/visit.txt"
if [ "$code" = 0 ] && [ -n "${DRILLS:-}" ]; then
  # shellcheck disable=SC2086
  PYTHONPATH="$PWD:$PYTHONPATH" "$python" tests/engine/gpu/drills.py --study "$home/mlruns/studies/$study" --out "$home/drills" $DRILLS || code=3
  cp "$home/drills/drills.json" "$OUT/" 2>/dev/null
fi
command -v nvidia-smi > /dev/null && nvidia-smi --query-gpu=index,memory.used --format=csv,noheader | tee -a "$OUT/visit.txt"
tar cJf "$OUT/$study.tar.xz" -C "$home/mlruns" --exclude='*.parquet' --exclude=./models . && ls -l "$OUT"
exit $code
