"""Train zse-tiny, the built-in model, from text that ``tiny_tasks.py`` generates.

    OMP_NUM_THREADS=1 .venv/bin/python scripts/train_tiny.py --out zse/models/builtin_tiny

Writes a Hugging Face checkpoint (Llama architecture) and tests/data/questions.jsonl. Everything is
seeded: the same machine, torch and command give the same weights. 20 minutes on one idle core.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from pathlib import Path

import tiny_tasks as tasks
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn
from torch.nn import functional as F

ROOT = Path(__file__).resolve().parent.parent
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 1536,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "mlp_bias": False,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "torch_dtype": "float16",
}
NF4_CODES = (
    "-1 -0.6961928 -0.5250731 -0.39491749 -0.28444138 -0.18477343 -0.09105004 0 "
    "0.0795803 0.1609302 0.2461123 0.33791524 0.44070983 0.562617 0.72295684 1"
)


# --- tokenizer ----------------------------------------------------------------------------------


def train_tokenizer(seed: int) -> Tokenizer:
    """A byte-level BPE with the Qwen style split, trained on a sample of the task text."""
    rng = random.Random(seed)
    lines = [text for _ in range(30_000) for text in turn_texts(tasks.plain_turn(rng))]
    # Every name often enough to become one token.
    lines += [tasks.capital_turn(rng, c).answer for c in tasks.CAPITALS for _ in range(60)]
    lines += [tasks.opposite_turn(rng, w).answer for p in tasks.OPPOSITES for w in p for _ in "ab"]
    for _ in range(1000):
        tool = tasks.weather_tool(rng)
        lines.append(tasks.system_text(rng.choice(tasks.SYSTEMS), tool))
        lines += [t for turn in tasks.weather_turns(rng, tool) for t in turn_texts(turn)]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=CONFIG["vocab_size"],
        special_tokens=[AddedToken(text, special=True, normalized=False) for text in SPECIALS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(lines, trainer)
    return tokenizer


def turn_texts(turn: tasks.Turn) -> tuple[str, str]:
    return tasks.user_text(turn), tasks.answer_text(turn)


# --- batches ------------------------------------------------------------------------------------


class Batches:
    """Conversations of a fixed length in tokens, with a loss mask that covers answers only."""

    def __init__(self, tokenizer: Tokenizer, seed: int, tokens_per_batch: int) -> None:
        self.rng = random.Random(seed)
        self.tokenizer = tokenizer
        self.tokens = tokens_per_batch
        self.held_out = tasks.held_out()
        self.cache: dict[str, list[int]] = {}

    def ids(self, text: str) -> list[int]:
        """Encode one piece; pieces repeat, so they are cached."""
        found = self.cache.get(text)
        if found is None:
            found = self.cache[text] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return found

    def turn(self, turn: tasks.Turn) -> tuple[list[int], list[int]]:
        question = self.ids(
            f"<|im_start|>user\n{tasks.user_text(turn)}<|im_end|>\n<|im_start|>assistant\n"
        )
        answer = self.ids(tasks.answer_text(turn) + "<|im_end|>")
        end = self.ids("\n")
        return question + answer + end, [0] * len(question) + [1] * len(answer) + [0] * len(end)

    def raw_row(self, length: int) -> tuple[list[int], list[int]]:
        """Plain sentences without the chat form, for text completion."""
        ids: list[int] = []
        while len(ids) < length:
            makers = (tasks.capital_turn, tasks.sum_turn, tasks.opposite_turn)
            ids += [*self.ids(self.rng.choice(makers)(self.rng).answer), 0]
        return ids[:length], [1] * length

    def conversation(self, length: int) -> tuple[list[int], list[int]]:
        rng = self.rng
        tool = tasks.weather_tool(rng) if length >= 128 and rng.random() < 0.6 else None
        system = rng.choice(tasks.SYSTEMS) if rng.random() < 0.25 else ""
        ids = list(self.ids(tasks.system_text(system, tool))) if system or tool else []
        mask = [0] * len(ids)
        while True:
            if tool is not None and rng.random() < 0.6:
                turns = tasks.weather_turns(rng, tool)
            else:
                turns = [tasks.plain_turn(rng, self.held_out)]
            for turn in turns:
                more_ids, more_mask = self.turn(turn)
                if len(ids) + len(more_ids) > length:
                    return ids + [0] * (length - len(ids)), mask + [0] * (length - len(mask))
                ids += more_ids
                mask += more_mask

    def next(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Token ids and mask, [rows, length]."""
        length = self.rng.choices((48, 128, 192, 512), (0.40, 0.35, 0.17, 0.08))[0]
        rows = []
        for _ in range(self.tokens // length):
            raw = self.rng.random() < 0.02
            rows.append(self.raw_row(length) if raw else self.conversation(length))
        return torch.tensor([r[0] for r in rows]), torch.tensor([r[1] for r in rows])


# --- model --------------------------------------------------------------------------------------


class FakeQuant:
    """Rounds weights as a 4-bit file would, with straight-through gradients; off at first."""

    def __init__(self) -> None:
        self.scheme = "none"
        codes = torch.tensor([float(code) for code in NF4_CODES.split()])
        self.codes, self.edges = codes, (codes[1:] + codes[:-1]) / 2

    def __call__(self, weight: torch.Tensor) -> torch.Tensor:
        if self.scheme == "none":
            return weight
        with torch.no_grad():
            size = 128 if self.scheme == "int4" else 64
            groups = weight.view(-1, size)
            if self.scheme == "int4":
                low, high = groups.aminmax(dim=1, keepdim=True)
                scale = ((high - low) / 15).clamp_min(1e-8)
                rounded = ((groups - low) / scale).round() * scale + low
            else:
                absmax = groups.abs().amax(dim=1, keepdim=True).clamp_min(1e-8)
                rounded = self.codes[torch.bucketize(groups / absmax, self.edges)] * absmax
            difference = rounded.view_as(weight) - weight
        return weight + difference


class Layer(nn.Module):
    """One Llama block; parameter names end as the checkpoint's do."""

    def __init__(self) -> None:
        super().__init__()
        hidden, inter = CONFIG["hidden_size"], CONFIG["intermediate_size"]
        rows = CONFIG["num_key_value_heads"] * CONFIG["head_dim"]
        shapes = {
            "self_attn.q_proj": (hidden, hidden),
            "self_attn.k_proj": (rows, hidden),
            "self_attn.v_proj": (rows, hidden),
            "self_attn.o_proj": (hidden, hidden),
            "mlp.gate_proj": (inter, hidden),
            "mlp.up_proj": (inter, hidden),
            "mlp.down_proj": (hidden, inter),
        }
        self.names = {name.split(".")[1][:-5]: name for name in shapes}
        for short, name in self.names.items():
            deviation = shapes[name][1] ** -0.5 * (0.35 if short in ("o", "down") else 1.0)
            setattr(self, short, nn.Parameter(torch.randn(shapes[name]) * deviation))
        self.input_layernorm = nn.Parameter(torch.ones(hidden))
        self.post_attention_layernorm = nn.Parameter(torch.ones(hidden))

    def forward(self, x: torch.Tensor, rope: torch.Tensor, fake: FakeQuant) -> torch.Tensor:
        rows, length, hidden = x.shape
        h = norm(x, self.input_layernorm)
        heads = [
            F.linear(h, fake(w)).view(rows, length, -1, CONFIG["head_dim"]).transpose(1, 2)
            for w in (self.q, self.k, self.v)
        ]
        q, k = (rotate(t, rope[:, :length]) for t in heads[:2])
        repeats = q.shape[1] // k.shape[1]
        k, v = (t.repeat_interleave(repeats, dim=1) for t in (k, heads[2]))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + F.linear(attended.transpose(1, 2).reshape(rows, length, hidden), fake(self.o))
        h = norm(x, self.post_attention_layernorm)
        gated = F.silu(F.linear(h, fake(self.gate))) * F.linear(h, fake(self.up))
        return x + F.linear(gated, fake(self.down))


def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight, CONFIG["rms_norm_eps"])


def rotate(x: torch.Tensor, rope: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * rope[0] + torch.cat((-second, first), dim=-1) * rope[1]


class Tiny(nn.Module):
    """The whole model: tied embedding, layers, final norm."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Parameter(torch.randn(CONFIG["vocab_size"], CONFIG["hidden_size"]) * 0.15)
        self.layers = nn.ModuleList(Layer() for _ in range(CONFIG["num_hidden_layers"]))
        self.norm = nn.Parameter(torch.ones(CONFIG["hidden_size"]))
        self.fake = FakeQuant()
        half = torch.arange(0, CONFIG["head_dim"], 2) / CONFIG["head_dim"]
        angles = torch.outer(torch.arange(2048), CONFIG["rope_theta"] ** -half).repeat(1, 2)
        self.rope = torch.stack((angles.cos(), angles.sin()))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Final hidden states, [rows, length, hidden]."""
        x = F.embedding(ids, self.embed)
        for layer in self.layers:
            x = layer(x, self.rope, self.fake)
        return norm(x, self.norm)

    def loss(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Mean cross entropy over the answers' tokens; only they reach the head."""
        wanted = mask[:, 1:].bool()
        logits = F.linear(self(ids[:, :-1])[wanted], self.embed)
        return F.cross_entropy(logits, ids[:, 1:][wanted])

    def checkpoint(self) -> dict[str, torch.Tensor]:
        """Weights in fp16 under Hugging Face names."""
        found = {"model.embed_tokens.weight": self.embed, "model.norm.weight": self.norm}
        for index, layer in enumerate(self.layers):
            prefix = f"model.layers.{index}."
            for short, name in layer.names.items():
                found[f"{prefix}{name}.weight"] = getattr(layer, short)
            for name in ("input_layernorm", "post_attention_layernorm"):
                found[f"{prefix}{name}.weight"] = getattr(layer, name)
        return {k: v.detach().to(torch.float16).contiguous() for k, v in found.items()}


# --- training -----------------------------------------------------------------------------------


def train(tokenizer: Tokenizer, options: argparse.Namespace) -> Tiny:
    """AdamW with warm-up and a cosine; the last part of the run rounds weights to 4 bits."""
    torch.manual_seed(options.seed)
    model, batches = Tiny(), Batches(tokenizer, options.seed + 1, options.batch_tokens)
    matrices = [p for p in model.parameters() if p.ndim == 2]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=options.lr, betas=(0.9, 0.98), fused=True)
    started, seen, running = time.monotonic(), 0, 0.0
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters", flush=True)
    for step in range(options.steps):
        fraction = step / options.steps
        warm = min(1.0, (step + 1) / 100)
        for group in optimizer.param_groups:
            group["lr"] = options.lr * warm * (0.02 + 0.98 * (1 + math.cos(math.pi * fraction)) / 2)
        # Three steps in four of the finishing phase see a file's rounding, the fourth none.
        late = ("int4", "nf4", "int4", "none")[step % 4]
        model.fake.scheme = late if fraction > options.plain_fraction else "none"
        ids, mask = batches.next()
        loss = model.loss(ids, mask)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seen += ids.numel()
        running = loss.item() if step == 0 else 0.98 * running + 0.02 * loss.item()
        if (step + 1) % 50 == 0:
            seconds = time.monotonic() - started
            print(
                f"step {step + 1} loss {running:.4f} {seen / seconds:,.0f} tok/s {seconds:.0f} s",
                flush=True,
            )
        if options.checkpoint_every and (step + 1) % options.checkpoint_every == 0:
            export(model, tokenizer, options.out)
    model.fake.scheme = "none"
    return model


# --- export -------------------------------------------------------------------------------------


def export(model: Tiny, tokenizer: Tokenizer, folder: Path) -> None:
    """Write the checkpoint in Hugging Face form."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(model.checkpoint(), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    tokenizer.save(str(folder / "tokenizer.json"))
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": False,
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": CONFIG["max_position_embeddings"],
        "clean_up_tokenization_spaces": False,
        "chat_template": tasks.CHAT_TEMPLATE,
    }
    generation = {"do_sample": False, "eos_token_id": [2, 0], "pad_token_id": 0}
    files = {
        "config": CONFIG,
        "tokenizer_config": tokenizer_config,
        "generation_config": generation,
    }
    for name, value in files.items():
        text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
        (folder / f"{name}.json").write_text(text, encoding="utf-8")


def check(model: Tiny, folder: Path) -> None:
    """Transformers must load the folder, compute the same logits and render the same text."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tool = tasks.weather_tool()
    turns = tasks.weather_turns(random.Random(3), tool)
    messages = [{"role": "system", "content": "Be concise."}]
    text = tasks.system_text("Be concise.", tool)
    for turn in turns:
        calls = [{"type": "function", "function": call} for call in turn.tool_calls]
        messages.append({"role": turn.role, "content": turn.user})
        messages.append({"role": "assistant", "content": turn.answer, "tool_calls": calls})
        text += f"<|im_start|>user\n{tasks.user_text(turn)}<|im_end|>\n"
        text += f"<|im_start|>assistant\n{tasks.answer_text(turn)}<|im_end|>\n"
    rendered = tokenizer.apply_chat_template(messages, tools=[tool], tokenize=False)
    assert rendered == text, f"the chat template differs:\n{rendered!r}\n{text!r}"
    ids = torch.tensor([tokenizer(text)["input_ids"]])
    model.load_state_dict({k: v.half().float() for k, v in model.state_dict().items()})
    with torch.no_grad():
        difference = (loaded(ids).logits - F.linear(model(ids), model.embed)).abs().max().item()
    assert difference < 1e-2, f"transformers computes other logits: difference {difference}"
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"transformers agrees (difference {difference:.1e}); {size / 1e6:.2f} MB in {folder}")


def write_questions(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = (json.dumps(row, ensure_ascii=False) + "\n" for row in tasks.questions())
    path.write_text("".join(rows), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "zse/models/builtin_tiny")
    parser.add_argument("--questions", type=Path, default=ROOT / "tests/data/questions.jsonl")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--steps", type=int, default=2200)
    parser.add_argument("--batch-tokens", type=int, default=2048)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--plain-fraction", type=float, default=0.7)
    parser.add_argument("--checkpoint-every", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    write_questions(options.questions)
    tokenizer = train_tokenizer(options.seed)
    model = train(tokenizer, options)
    export(model, tokenizer, options.out)
    check(model, options.out)


if __name__ == "__main__":
    main()
