"""A CPU beside llama.cpp in the same run: starts, decoding, prompts, memory, shared cores.

    scripts/bench/cpu.sh --rows decode_int4,prefill --rounds 3

Rows are measured one after the other. In a row all subjects are measured in turns, a short run each
in a process of its own, so that other work of the machine hurts all of them alike; the best round
of each counts, and the middle of the rounds' ratios stands beside it. Models of random weights are
made in --work and kept, as is llama.cpp, unless --llama names a folder with its programs. Pin the
whole with taskset to as many cores as are to be measured. Prints each row's figures with what is
wanted of them, and one JSON object as the last line.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

from cpu_bench import Bench, Lengths
from cpu_pack import pack
from cpu_rows import ROWS, chosen
from cpu_table import measure, print_row, summary
from machine import machine_facts
from peers import PeerNotRunError

from zse.errors import ZSEError

WORK = Path("/var/tmp/zse-bench-cpu")


def main() -> None:
    options = build_parser().parse_args()
    bench = Bench(
        work=options.work.resolve(),
        given_llama=options.llama,
        device=options.device,
        threads=options.threads,
        shares=options.shares,
        lengths=Lengths(decode=options.output, prefill=options.input),
    )
    if options.pack:
        print(pack(options.pack, bench.llama))
        return
    facts = {
        "subject": "cpu",
        **machine_facts(),
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "num_cores": len(os.sched_getaffinity(0)),
        "load_average_before": os.getloadavg()[0],
        "zse_device": options.device,
        "rounds": options.rounds,
        "shares": options.shares,
        "decode_tokens": options.output,
        "prefill_tokens": options.input,
    }
    results: dict[str, object] = {}
    for name in options.rows:
        try:
            row = ROWS[name](bench)
            results[name] = result = summary(row, measure(row, options.rounds))
            print_row(name, row, result)
        except (PeerNotRunError, ZSEError) as error:
            print(f"\n{name}: not run: {error}", flush=True)
            results[name] = {"not_run": str(error)}
    facts["llama.cpp"] = bench.llama_facts()
    print(json.dumps({**facts, "load_average_after": os.getloadavg()[0], "rows": results}))


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--rows",
        type=rows_of,
        default=list(ROWS),
        help=f"by their beginnings, of {', '.join(ROWS)}",
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--work", type=Path, default=WORK, help="folder of models and programs, kept"
    )
    parser.add_argument("--llama", type=Path, help="folder with llama-server, llama-bench, ...")
    parser.add_argument("--device", default="cpu", help="of zse")
    parser.add_argument(
        "--threads", type=int, default=len(os.sched_getaffinity(0)), help="of llama.cpp"
    )
    parser.add_argument("--input", type=int, default=512, help="tokens of a prompt that is timed")
    parser.add_argument("--output", type=int, default=48, help="tokens that are decoded")
    parser.add_argument("--shares", type=int, default=0, help="CPU shares; other work has 1024")
    parser.add_argument("--pack", type=Path, help="write all that another host needs, end")
    return parser


def rows_of(text: str) -> list[str]:
    try:
        return chosen(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


if __name__ == "__main__":
    main()
