#!/usr/bin/env bash
# Everything the performance page states about a GPU, in one run: the tests marked gpu, then every benchmark.
#
#     scripts/bench/gpu.sh OUT PACK [MODELS_FOLDER]
#
# OUT gets all.log, results.jsonl (the last line of each benchmark) and a log of each part; PACK is a kernel pack
# for this GPU; models with random weights are made in MODELS_FOLDER (default /dev/shm, 65 GB with all sizes). May
# be set: PYTHON; LLAMA_SERVER, an executable to measure beside; HF_PEER=none, where transformers with bitsandbytes
# is not to be; PARTS, a regular expression of the parts to run. Parts that fail or run out of time are reported
# and do not stop the rest.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
out=${1:?folder for the results} pack=${2:?kernel pack} models=${3:-/dev/shm}
python=${PYTHON:-python3} bench=scripts/bench
mkdir -p "$out"
export PYTHONPATH=$PWD:$PWD/tests/support${PYTHONPATH:+:$PYTHONPATH} PYTHONDONTWRITEBYTECODE=1
export ZSE_KERNELS=$pack ZSE_REQUIRE_GPU=1
llama=${LLAMA_SERVER:+llama-server} peers=${HF_PEER:-hf-bnb}${llama:+,$llama}

wanted() { # part
    [[ $1 =~ ${PARTS:-.} ]]
}

part() { # seconds name command...
    wanted "$2" || return 0
    local limit=$1 name=$2 log=$out/$2.log
    shift 2
    timeout "$limit" "$@" >"$log" 2>&1
    echo "== $(date +%T) $name: exit code $?"
    grep '^{' "$log" | tail -1 >>"$out/results.jsonl"
    grep -v '^{' "$log" | tail -30
}

model() { # shape scheme
    local file=$models/$1-$2.zse
    [ -f "$file" ] || "$python" $bench/make_model.py --like "$1" --quant "$2" -o "$file" >/dev/null
    echo "$file"
}

run_all() {
    part 150 tests "$python" -m pytest -q -m gpu tests/device tests/stream tests/backends tests/engine \
        tests/kernels/attention tests/quantize/huggingface -p no:cacheprovider
    small=$(model qwen2.5-7b int4)
    part 60 decode-1 "$python" $bench/decode.py "$small" --batch 1 --input 128 --output 256 --device cuda
    part 90 decode-many "$python" $bench/decode.py "$small" --batch 8,32,128 --input 512 --output 128 --device cuda
    part 60 decode-penalty "$python" $bench/decode.py "$small" --batch 1,8 --input 512 --output 128 --device cuda \
        --repetition-penalty 1.05
    part 120 grammar "$python" $bench/grammar.py "$small" --batch 1,32 --input 128 --output 256 --device cuda
    part 60 prefill "$python" $bench/prefill.py "$small" --tokens 2048,8192 --device cuda
    part 60 step-profile "$python" $bench/step_profile.py "$small"
    part 60 loader "$python" $bench/loader.py --folder "$models" --disk /var/tmp --repeat 3
    part 240 kernels "$python" $bench/kernels.py --pack "$pack" --results "$out/kernels.jsonl"
    part 60 tune "$python" -m zse kernels tune --scheme int4 --shape 3584x4608 --rows 1 --rows 16 --force -o "$out/tuned.json"
    part 300 memory "$python" $bench/memory.py --like qwen2.5-7b,qwen2.5-32b --device cuda --folder "$models"
    part 120 logits "$python" $bench/logits.py "$small" --device cuda
    part 300 cold-7b "$python" $bench/cold_start.py "$small" --device cuda --repeat 5 \
        --peers "$peers" --work "$models/peers" --llama-server "${LLAMA_SERVER:-}"
    rm -rf "$models/peers"
    for scheme in nf4 int8 bf16; do
        wanted decode-$scheme || continue
        file=$(model qwen2.5-7b $scheme)
        part 60 decode-$scheme "$python" $bench/decode.py "$file" --batch 1 --input 128 --output 256 --device cuda
        rm -f "$file"
    done
    "$python" -m zse convert zse/models/builtin_tiny --quant int4 --force -o "$out/tiny-int4.zse" >/dev/null 2>&1
    part 90 soak "$python" $bench/soak.py "$out/tiny-int4.zse" --requests 2000 --concurrency 64 --cancel 0.2 \
        --device cuda --tolerance 0.4
    part 120 quality "$python" $bench/quality.py --model "$out/tiny-int4.zse" --device cuda --against cpu
    for size in 32b 72b; do
        wanted decode-$size || wanted cold-$size || continue
        file=$(model qwen2.5-$size int4)
        part 60 decode-$size "$python" $bench/decode.py "$file" --batch 1 --input 128 --output 256 --device cuda
        part 150 cold-$size "$python" $bench/cold_start.py "$file" --device cuda --repeat 3 \
            --peers "$([ $size = 72b ] || echo "$llama")" --work "$models/peers" --llama-server "${LLAMA_SERVER:-}"
        rm -rf "$file" "$models/peers"
    done
}

run_all 2>&1 | tee "$out/all.log"
