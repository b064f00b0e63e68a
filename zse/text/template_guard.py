"""Bounds on what a chat template may cost, woven into its source before it is compiled.

The engine's fuel counts instructions, not memory: twenty doublings of a string cost a hundred units
and a gigabyte, and some native failures (a namespace that contains itself) end the process. So the
source is read once, tag by tag: a check is placed after everything that stores a value, a charge
at the head of every loop, and the few constructs that amplify without storing are refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from zse.errors import TemplateError
from zse.text.template_tags import STRING, tags_of

MAX_SOURCE_CHARACTERS = 200_000
CHECK, CHARGE, JOIN, REPLACE = "_zse_check", "_zse_charge", "_zse_join", "_zse_replace"

_STRING_OR_CODE = re.compile(rf"({STRING})", re.DOTALL)
_WORD = re.compile(r"\s*(\w+)\s*(.*)", re.DOTALL)
_ASSIGNMENT = re.compile(r"(?P<target>[^=]*)=(?!=)\s*(?P<value>.*)", re.DOTALL)
_TARGET = re.compile(r"\(?\s*[A-Za-z_][\w.]*(\s*,\s*[A-Za-z_][\w.]*)*\s*,?\s*\)?")
_NAMESPACE = re.compile(r"namespace\s*\(")
_PARAMETERS = re.compile(r"(?:^|,)\s*([A-Za-z_]\w*)\s*(?==|,|$)")
_REFUSED_WORDS = frozenset({"include", "import", "from", "extends", "autoescape"})


@dataclass
class _Weaver:
    """State while a source is read."""

    namespaces: frozenset[str]
    out: list[str] = field(default_factory=list)
    bodies: list[tuple[int, int]] = field(default_factory=list)
    """Open loops and macros: the piece that takes their charge, and the text before them."""
    text_characters: int = 0
    block_sets: list[str] = field(default_factory=list)

    def text(self, text: str) -> None:
        self.out.append(text)
        self.text_characters += len(text)

    def block(self, body: str) -> None:
        word, rest, left, right = _split_block(body)
        if word in _REFUSED_WORDS:
            raise _refused(f"the statement '{word}'")
        _refuse_bare_namespace(rest, self.namespaces, is_set=word == "set")
        checked = self._checked(word, rest)
        self.out.append(f"{{%{left} {word} {_guard_code(rest)} ")
        if checked is not None:
            self.out.append(f"%}}{{% do {CHECK}({checked}) ")
        if word in ("for", "macro", "call"):
            self.bodies.append((len(self.out), self.text_characters))
            self.out.append("")
        elif word in ("endfor", "endmacro", "endcall") and self.bodies:
            index, start = self.bodies.pop()
            cost = self.text_characters - start + 1
            self.out[index] = f"%}}{{% do {CHARGE}({cost}) "
        self.out.append(f"{right}%}}")

    def printed(self, body: str) -> None:
        body, left, right = _trim_marks(body)
        _refuse_bare_namespace(body, self.namespaces, is_set=False)
        self.out.append(f"{{{{{left} {_guard_code(body)} {right}}}}}")

    def _checked(self, word: str, rest: str) -> str | None:
        """The names that a statement stores, None for statements that store nothing."""
        if word == "set":
            assignment = _ASSIGNMENT.fullmatch(rest)
            if assignment is None:
                self.block_sets.append(_target(re.split(r"[|\s]", rest, maxsplit=1)[0]))
                return None
            target = _target(assignment["target"])
            return None if _is_namespace_definition(rest) else target
        if word == "endset" and self.block_sets:
            return self.block_sets.pop()
        if word == "with":
            return ", ".join(_parameters(rest))
        if word == "macro":
            return ", ".join(_parameters(rest.partition("(")[2].rpartition(")")[0]))
        return None


def _refuse_bare_namespace(code: str, names: frozenset[str], *, is_set: bool) -> None:
    """A namespace may only be used by its attributes, so that it can never contain itself."""
    plain = _STRING_OR_CODE.sub("''", code)
    if is_set and _is_namespace_definition(plain):
        plain = _NAMESPACE.sub("", plain.partition("=")[2], count=1)
    if re.search(r"\bnamespace\b", plain):
        raise _refused("namespace() anywhere but in {% set name = namespace(...) %}")
    for name in names:
        if re.search(rf"(?<![\w.]){re.escape(name)}\b(?!\s*(?:\.|\[|=(?!=)))", plain):
            raise _refused(f"the namespace '{name}' as a value")


def _namespace_names(source: str) -> frozenset[str]:
    names = set()
    for tag in tags_of(source):
        if tag.kind == "block":
            word, rest, _, _ = _split_block(tag.body)
            if word == "set" and _is_namespace_definition(rest):
                names.add(_target(rest.partition("=")[0]))
    return frozenset(names)


def _split_block(body: str) -> tuple[str, str, str, str]:
    """Return a statement's word, the rest, and its left and right trim marks."""
    body, left, right = _trim_marks(body)
    match = _WORD.fullmatch(body)
    return (match[1], match[2].strip(), left, right) if match else ("", body, left, right)


def weave(source: str) -> str:
    """Return the source with its checks.

    Raises:
        TemplateError: The source is too long, or uses a construct that cannot be bounded.
    """
    if len(source) > MAX_SOURCE_CHARACTERS:
        raise TemplateError(
            f"the chat template has {len(source)} characters; {MAX_SOURCE_CHARACTERS} are allowed"
        )
    if "_zse_" in source:
        raise _refused("names that hold '_zse_'")
    # Training marks print nothing; an empty comment keeps what they trim.
    source = re.sub(r"\{%([-+]?)\s*(?:end)?generation\s*([-+]?)%\}", r"{#\1 \2#}", source)
    weaver, position = _Weaver(namespaces=_namespace_names(source)), 0
    for tag in tags_of(source):
        weaver.text(source[position : tag.start])
        position = tag.end
        if tag.kind == "raw":
            weaver.text(source[tag.start : tag.end])
        elif tag.kind == "block":
            weaver.block(tag.body)
        elif tag.kind == "print":
            weaver.printed(tag.body)
        else:
            weaver.out.append(source[tag.start : tag.end])
    weaver.text(source[position:])
    return "".join(weaver.out)


def _trim_marks(body: str) -> tuple[str, str, str]:
    left = body[:1] if body[:1] in ("-", "+") else ""
    body = body[len(left) :]
    right = body[-1:] if body[-1:] in ("-", "+") else ""
    return body[: len(body) - len(right)], left, right


def _guard_code(code: str) -> str:
    """Refuse what amplifies, and route the two growing string methods to bounded filters."""
    parts = _STRING_OR_CODE.split(code)
    for i in range(0, len(parts), 2):
        if "*" in parts[i]:
            raise _refused("the operator '*'")
        if re.search(r"\.\s*format\b|\bformat\s*\(|\|\s*format\b", parts[i]):
            raise _refused("string formatting")
        parts[i] = re.sub(r"\.\s*replace\s*\(", f"|{REPLACE}(", parts[i])
        parts[i] = re.sub(r"\|\s*replace\b", f"|{REPLACE}", parts[i])
        parts[i] = re.sub(r"\.\s*join\s*\(", f"|{JOIN}(", parts[i])
    return "".join(parts)


def _is_namespace_definition(rest: str) -> bool:
    assignment = _ASSIGNMENT.fullmatch(rest.strip())
    return assignment is not None and _NAMESPACE.match(assignment["value"]) is not None


def _target(text: str) -> str:
    if not _TARGET.fullmatch(text.strip()):
        raise _refused(f"an assignment to {text.strip()[:40]!r}")
    return text.strip().strip("()").rstrip(", ")


def _parameters(text: str) -> list[str]:
    plain = _STRING_OR_CODE.sub("''", text)
    while (shorter := re.sub(r"\([^()]*\)|\[[^\[\]]*\]|\{[^{}]*\}", "''", plain)) != plain:
        plain = shorter
    return _PARAMETERS.findall(plain)


def _refused(what: str) -> TemplateError:
    return TemplateError(
        f"the chat template uses {what}, which is refused because its cost cannot be bounded",
        hint="Use /v1/completions with a prompt of your own, or change the model's template.",
    )
