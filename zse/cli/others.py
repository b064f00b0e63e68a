"""What servers and tools of others call their options and commands, and what does the same here.

Whoever comes from there types these first. The guide ``docs/guides/migrate.md`` has the same in
words.
"""

from __future__ import annotations

_ALWAYS = "It is always so here: leave it out."
_FROM_MODEL = "It is known from the model's files: leave it out."
_ARGUMENT = "MODEL is an argument, not an option: zse serve MODEL."
_CONTEXT = "Here it is --max-context, of zse serve."
_MEMORY = "Here it is --vram-gib, in GiB, of zse serve; without it, all that is free is used."
_RUNNING = "Here it is --max-running, of zse serve."
_KV_DTYPE = "Here it is --kv-dtype, of zse serve."
_SCHEME = "It is decided when the file is made: zse convert MODEL -o FILE --quant SCHEME."
_TENSOR = "Here it is --tensor-parallel N, of zse serve and benchmark."
_PIPELINE = "Here it is --pipeline-parallel N, of zse serve."
_LORA = "Here it is --lora NAME=FOLDER, of zse serve; it may be given several times."
_DRAFTS = "Here it is --speculate, of zse serve, with --draft-model for a small model."
_OFFLOAD = "Here it is --stream on, of zse serve, with --resident-layers and --ram-gib."
_REPLICAS = "Start a server for each, and put `zse route` in front of them."
_SEED = "A request has it: the field 'seed'."

OPTIONS = {
    "--allowed-origins": "Here it is --cors-origin, of zse serve.",
    "--api-key": "Make one with `zse api-key create NAME`, or put it into ZSE_API_KEYS.",
    "--cache-type-k": _KV_DTYPE,
    "--chat-template": "It goes into the .zse file: zse convert MODEL --chat-template FILE.",
    "--context-length": _CONTEXT,
    "--cpu-offload-gb": _OFFLOAD,
    "--ctx-size": _CONTEXT,
    "--data-parallel-size": _REPLICAS,
    "--dp-size": _REPLICAS,
    "--dtype": _SCHEME,
    "--enable-auto-tool-choice": _ALWAYS,
    "--enable-chunked-prefill": _ALWAYS,
    "--enable-lora": _LORA,
    "--enable-prefix-caching": _ALWAYS,
    "--gpu-layers": _OFFLOAD,
    "--gpu-memory-utilization": _MEMORY,
    "--jinja": _ALWAYS,
    "--kv-cache-dtype": _KV_DTYPE,
    "--lora-modules": _LORA,
    "--lora-paths": _LORA,
    "--max-model-len": _CONTEXT,
    "--max-num-seqs": _RUNNING,
    "--max-running-requests": _RUNNING,
    "--max-total-tokens": _CONTEXT,
    "--mem-fraction-static": _MEMORY,
    "--model-draft": _DRAFTS,
    "--model-id": _ARGUMENT,
    "--model-path": _ARGUMENT,
    "--n-gpu-layers": _OFFLOAD,
    "--num-shard": _TENSOR,
    "--parallel": _RUNNING,
    "--pipeline-parallel-size": _PIPELINE,
    "--pp-size": _PIPELINE,
    "--quantization": _SCHEME,
    "--quantize": _SCHEME,
    "--runner": _FROM_MODEL,
    "--seed": _SEED,
    "--speculative-algorithm": _DRAFTS,
    "--speculative-config": _DRAFTS,
    "--task": _FROM_MODEL,
    "--tensor-parallel-size": _TENSOR,
    "--tool-call-parser": "Here it is --tool-parser, of zse serve; without it, the model says.",
    "--tp-size": _TENSOR,
    "--trust-remote-code": "No code of a model is run here: leave it out.",
    "-c": _CONTEXT,
    "-m": _ARGUMENT,
}
"""By the option, in commands that do not have it."""
COMMANDS = {
    "bench": "benchmark",
    "download": "models pull",
    "generate": "chat",
    "list": "models list",
    "rm": "cache clean",
    "run": "chat",
}
"""By the command."""
