"""Command lines that help shows, by the command that they are of.

Imported when help is asked for.
"""

from __future__ import annotations

EXAMPLES: dict[str, tuple[tuple[str, str], ...]] = {
    "api-key create": (
        ("zse api-key create my-app", "a key for a program"),
        ("zse api-key create boss --scope admin", "one that opens every page"),
        ("zse api-key create guest --rate-limit 10", "ten requests a minute"),
    ),
    "audit query": (
        ("zse audit query --status 5xx --since 2h", "what failed in two hours"),
        ("zse audit query --key my-app --json", "what one key asked"),
    ),
    "benchmark": (
        ("zse benchmark qwen.zse", "speed, memory, first token"),
        ("zse benchmark qwen.zse --speculate auto", "with drafts and without"),
    ),
    "build-image": (
        ("zse build-image qwen.zse --name llm:1 --output tar:llm.tar", ""),
        ("zse build-image qwen.zse --name ghcr.io/me/llm:1 --push --gpu sm_90", ""),
        ("zse build-image s3://bucket/qwen.zse --model url --name llm:1 --push", ""),
    ),
    "cache clean": (
        ("zse cache clean --older-than 30d", "what nobody used for a month"),
        ("zse cache clean models --dry-run", "say what would go"),
    ),
    "chat": (
        ("zse chat tiny", "the built-in model, here"),
        ("zse chat --url http://127.0.0.1:8000", "a server's model"),
        ("echo 'Say hello.' | zse chat tiny", "one answer, for a script"),
    ),
    "cold-start": (
        ("zse cold-start qwen.zse", "where a start's time goes"),
        ("zse cold-start tar:llm.tar --budget-ms 900", "exit code 13 if it is slower"),
    ),
    "convert": (
        ("zse convert Qwen/Qwen2.5-7B-Instruct -o qwen.zse", "of the hub, to INT4"),
        ("zse convert ./checkpoint -o model.zse --quant int8", "of a folder"),
        ("zse convert model.gguf -o s3://bucket/model.zse", "of GGUF, to a bucket"),
    ),
    "cost": (("zse cost qwen.zse --requests-per-hour 20", "asleep or awake"),),
    "deploy": (
        ("zse deploy modal qwen.zse --image ghcr.io/me/llm:1", "show the plan"),
        ("zse deploy modal qwen.zse --image ghcr.io/me/llm:1 --apply", "carry it out"),
        ("zse deploy modal status", "what runs there"),
    ),
    "doctor": (
        ("zse doctor", "this machine"),
        ("zse doctor qwen.zse", "and whether it serves this"),
    ),
    "eval": (
        ("zse eval qwen.zse", "perplexity"),
        ("zse eval qwen.zse --against ./checkpoint", "what quantization cost"),
    ),
    "export": (("zse export qwen.zse -o ./checkpoint", "for transformers and others"),),
    "fit": (
        ("zse fit Qwen/Qwen2.5-7B-Instruct", "how many, on each GPU"),
        ("zse fit qwen.zse=10 other.zse=1 --gpu H100", "do they fit together"),
    ),
    "image push": (("zse image push tar:llm.tar ghcr.io/me/llm:1", "with the digest it has"),),
    "info": (
        ("zse info Qwen/Qwen2.5-7B-Instruct", "memory, and the smallest GPU"),
        ("zse info qwen.zse --max-context 32768", "with so long a context"),
    ),
    "inspect": (
        ("zse inspect qwen.zse", "header and tensors"),
        ("zse inspect qwen.zse --verify", "every byte"),
    ),
    "kernels build": (("zse kernels build --gpu sm_90 -o packs", "for an H100 or H200"),),
    "models list": (("zse models list --recommended --vram 24", "for a GPU of 24 GiB"),),
    "pull": (("zse pull s3://bucket/qwen.zse", "checked as it arrives"),),
    "push": (("zse push qwen.zse s3://bucket/", "under its own name"),),
    "route": (("zse route --replica http://a:8000 --replica http://b:8000", "in front of two"),),
    "serve": (
        ("zse serve tiny", "the built-in model, to try it"),
        ("zse serve qwen.zse --port 9000", "a file that `zse convert` wrote"),
        ("zse serve Qwen/Qwen2.5-7B-Instruct", "of the hub, converted on first use"),
        ("zse serve --models ./files", "a folder: requests name the model"),
    ),
    "top": (
        ("zse top", "the server on this machine"),
        ("zse top http://10.0.0.5:8000 --once", "another one, one look"),
    ),
}


def example_lines(command: str) -> list[str]:
    """Return the examples of a command, such as ``api-key create``, as lines of its help."""
    rows = EXAMPLES.get(command, ())
    width = max((len(line) for line, words in rows if words), default=0)
    return [f"{line:<{width}}  {words}".rstrip() for line, words in rows]
