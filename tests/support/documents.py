"""What the documents tell a reader to type, line by line, and what a line needs beyond an install."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from zse.records import record

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs" / "guides").glob("*.md")),
    ROOT / "docs" / "performance.md",
    *sorted((ROOT / "examples").glob("**/README.md")),
]
_FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)


@record
class Line:
    """One line to type: backslashes at line ends joined."""

    page: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}: {self.text}"


# The first that matches says why a line is not run here. Whoever writes a line that fits none of
# these has it run every night.
NEEDS: tuple[tuple[str, str], ...] = (
    (r"^docs/performance\.md:", "an H200 and an hour"),
    (r": scripts/|tests/infra|trim_schema", "the checkout, which CI itself runs"),
    (r": (python3 -m venv|pip |pipx )", "a fresh environment, which the test itself makes"),
    (r" \[", "values in place of a synopsis"),
    (r"\.\.\.|ENDPOINT_ID|acme--|:8080/|terraform output", "an account or a cluster"),
    (r": (docker|podman) |docker compose", "a container runtime"),
    (r": (kubectl|helm|modal|railway|vastai|terraform|aws|git|sh|export) ", "an account"),
    (r"terraform (init|apply)|railway login|: cd endpoint", "an account"),
    (r"zse deploy \w+ (status|logs|destroy)|--apply", "an account"),
    (r"\.gguf", "a GGUF file"),
    (r"s3://", "object storage"),
    (r"hf://|owner/name|https://huggingface", "a repository on the hub"),
    (r"--push|REGISTRY|kernels (push|pull)|ghcr\.io/acme/zse-kernels", "a registry"),
    (r"zse kernels (build|add|list|verify)|--gpu|--recipe cuda", "minutes of compiling"),
    (r"--device cuda|kernels tune", "a GPU"),
    (
        r"zse cold-start oci:|zse image (verify|inspect)",
        "an image and its build, which tests/e2e makes",
    ),
    (r"eval \"\$\(zse completion", "an interactive shell"),
)


def need_of(line: Line) -> str:
    """Return what a line needs beyond an installed zse; empty when it is run."""
    return next((need for rule, need in NEEDS if re.search(rule, str(line))), "")


def lines() -> list[Line]:
    """Return every line that a document shows as something to type."""
    found = []
    for page in PAGES:
        name = page.relative_to(ROOT).as_posix()
        for language, text in _FENCE.findall(page.read_text()):
            if language not in {"", "bash", "sh"}:
                continue
            for row in text.replace("\\\n", " ").splitlines():
                words = row.strip()
                if language or _is_typed(words):
                    found += [Line(page=name, text=words)] if words else []
    return found


def programs() -> list[tuple[str, str]]:
    """Return every Python block with its page."""
    return [
        (page.relative_to(ROOT).as_posix(), text)
        for page in PAGES
        for language, text in _FENCE.findall(page.read_text())
        if language == "python"
    ]


def zse_calls(line: Line) -> list[list[str]]:
    """Return the words after each ``zse`` of a line."""
    lexer = shlex.shlex(line.text, posix=True, punctuation_chars="&;|()<>")
    lexer.whitespace_split = True
    calls: list[list[str]] = []
    current: list[str] | None = None
    is_first = True
    for word in lexer:
        if set(word) <= set("&;|()<>"):
            current, is_first = None, word not in {"<", ">", ">>"}
        elif is_first and word.endswith("zse") and "/" not in word.removeprefix(".venv/bin/"):
            current, is_first = [], False
            calls.append(current)
        else:
            is_first = False
            if current is not None:
                current.append(word)
    return calls


def _is_typed(row: str) -> bool:
    """Whether a row of a block without a language is a command: other such blocks are pictures."""
    return bool(
        re.match(r"(\.venv/bin/)?zse [a-z-]+|scripts/\w+ |pip |docker |python -m ", row)
    ) and (not re.match(r"zse \d", row))
