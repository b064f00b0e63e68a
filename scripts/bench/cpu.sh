#!/usr/bin/env bash
# The CPU's table: zse beside llama.cpp in the same run; --help lists the rows and what can be set.
#
#     scripts/bench/cpu.sh --rows decode_int4,prefill --rounds 3
#     taskset -c 2,3 scripts/bench/cpu.sh > cpu.log; tail -1 cpu.log > benchmarks/results/cpu.json
#
# PYTHON names the interpreter. Servers get a home of their own, which is gone afterwards.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-$here/../../.venv/bin/python}
[ -x "$python" ] || python=python3
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
export ZSE_HOME=$home PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$here/../..${PYTHONPATH:+:$PYTHONPATH}
"$python" "$here/cpu.py" "$@"
