#!/bin/sh
# Rents the cheapest machine that fits and starts the image on it. The server's port is mapped to a
# public one of the machine, which `vastai show instances --raw` tells.
set -eu
offer=$(vastai search offers 'gpu_name=RTX_4090 num_gpus=1 cuda_vers>=12.4 verified=true rentable=true gpu_ram>=7 dph_total<=0.5' --order dph_total --limit 1 --raw |
    python3 -c 'import json, sys; print(json.load(sys.stdin)[0]["id"])')
answer="$(dirname "$0")/answer.json" # names the instance for `zse deploy vast logs`
vastai create instance "$offer" --raw --image ghcr.io/acme/qwen:1 --disk 16 \
    --label qwen --env '-p 8000:8000 -e ZSE_HOST=0.0.0.0 -e ZSE_DRAIN_SECONDS=25 -e PORT=8000' --args >"$answer"
cat "$answer"
