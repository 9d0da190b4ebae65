#!/usr/bin/env bash
# What a CUDA machine must show: the GPU tests, then the daemon on a model folder with random weights.
#   benchmarks/gpu_check.sh MODEL_FOLDER [OUT_DIR]
# Needs what pyproject.toml names, transformers and pytest; runs from a plain source tree.
set -uo pipefail
cd "$(dirname "$0")/.."
model=$1
out=${2:-out}
mkdir -p "$out"
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
url=http://127.0.0.1:8123

nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
python3 -c 'import torch, sys; print("torch", torch.__version__, "python", sys.version.split()[0])'
python3 -m pytest -p no:cacheprovider -q -m gpu tests/model tests/engine 2>&1 | tee "$out/pytest.log" | tail -15

python3 -m server.cli serve --model "$model" --load-format dummy --port 8123 --served-model-name m \
  --step-log "$out/steps.jsonl" >"$out/serve.log" 2>&1 &
server=$!
start=$(date +%s.%N)
until curl -sf "$url/health" >/dev/null; do
  kill -0 "$server" 2>/dev/null || { cat "$out/serve.log"; exit 1; }
  sleep 0.2
done
echo "health after $(python3 -c "import time; print(round(time.time() - $start, 1))") s"
curl -s "$url/v1/completions" -H 'Content-Type: application/json' \
  -d '{"prompt": "Hello", "max_tokens": 8, "temperature": 0}'
echo
python3 -m loadgen replay loadgen/traces/samples/azure_conv_120s.csv --base-url "$url" --model m \
  --limit "${LIMIT:-120}" --time-scale "${TIME_SCALE:-0.25}" --max-input-tokens 4096 --max-output-tokens 256 --output "$out/replay.jsonl"
curl -s "$url/metrics" | grep -E '^octavo:(generation_tokens_total|num_preemptions_total|num_requests_running)'
kill -TERM "$server"
wait "$server"
echo "server exit code $?"
tail -5 "$out/serve.log"
