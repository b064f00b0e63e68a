"""lm-eval: choices by log-probability, and generated answers, with no tokenizer of its own."""

import json
import sys
import tempfile
from pathlib import Path

from lm_eval import simple_evaluate

BASE_URL, MODEL = sys.argv[1:3]
QUESTIONS = [
    {"question": "The capital of France is", "choices": [" Paris", " Berlin", " 17"], "answer": 0},
    {"question": "Two and two make", "choices": [" blue", " four"], "answer": 1},
]

with tempfile.TemporaryDirectory() as folder:
    data = Path(folder) / "data.jsonl"
    data.write_text("".join(json.dumps(question) + "\n" for question in QUESTIONS))
    shared = {
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data)}},
        "test_split": "test",
        "doc_to_text": "{{question}}",
    }
    choice = {
        **shared,
        "task": "choice",
        "output_type": "multiple_choice",
        "doc_to_choice": "choices",
        "doc_to_target": "answer",
        "target_delimiter": "",
        "metric_list": [{"metric": "acc"}],
    }
    written = {
        **shared,
        "task": "written",
        "output_type": "generate_until",
        "doc_to_target": "{{choices[answer]}}",
        "generation_kwargs": {"until": ["\n"], "max_gen_toks": 8, "temperature": 0.0},
        "metric_list": [{"metric": "exact_match"}],
    }
    found = simple_evaluate(
        model="local-completions",
        model_args={"model": MODEL, "base_url": f"{BASE_URL}/completions", "num_concurrent": 2},
        tasks=[choice, written],
        bootstrap_iters=0,
    )

assert set(found["results"]) == {"choice", "written"}
assert 0 <= found["results"]["choice"]["acc,none"] <= 1
# Each choice has its log-probability, and they differ.
likely = [sample["filtered_resps"] for sample in found["samples"]["choice"]]
assert all(len({pair[0] for pair in pairs}) == len(pairs) for pairs in likely), likely
