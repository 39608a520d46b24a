#!/usr/bin/env bash
# One visit to a GPU machine: unpacks what was packed, goes on with a study for a limited time, brings its records back.
#   visit.sh LIMIT_SECONDS STUDY_NAME [hydra overrides ...]
# Needs $PACKS (folder of the archives), $OUT (what comes back), and a python3 with torch. Safe to call again: the study resumes.
set -u
limit=$1 study=$2; shift 2
home=${HOME_FOR_VISIT:-/tmp/visit}
mkdir -p "$home"
[ -d "$home/site" ] || tar xJf "$PACKS/engine.tar.xz" -C "$home" --no-same-owner || exit 1
[ -d "$home/runner-site" ] || tar xJf "$PACKS/runner.tar.xz" -C "$home" --no-same-owner || exit 1
[ -f "$PACKS/ray.tar.xz" ] && [ ! -d "$home/ray-site" ] && tar xJf "$PACKS/ray.tar.xz" -C "$home" --no-same-owner
export PYTHONPATH="$home/runner-site:$home/ray-site" TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NCCL_NVLS_ENABLE=0 PYTHONUNBUFFERED=1
executor=inline
[ -d "$home/ray-site" ] && executor=ray
echo "unpacked; $executor executor; $(python3 -c 'import torch; print(torch.__version__, torch.cuda.device_count(), "GPUs")')"
python3 -m runner "$@" study.name="$study" ++engine.python="$(command -v python3)" "++engine.extra_python_path=[$home/site]" \
  "++engine.cache_root=$home/caches" "execution.executor=${EXECUTOR:-$executor}" "execution.lock_dir=$home/lock" "tracking.root=$home/mlruns" \
  tracking.enabled=false execution.quiet=true yes=true &
runner=$!
( sleep "$limit"; kill -TERM $runner 2>/dev/null ) & timer=$!
wait $runner; code=$?
kill $timer 2>/dev/null
echo "runner ended with $code"
nvidia-smi --query-gpu=index,memory.used --format=csv,noheader
tar cJf "$OUT/$study.tar.xz" -C "$home/mlruns" --exclude='*.parquet' --exclude='models' . && ls -l "$OUT"
exit 0
