"""The reference page of the Python API: what ``zse`` offers, from signatures and docstrings.

Sources are read, not imported, but for the table of options: the page is the same whatever is
installed.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from zse.option import options_of
from zse.options import LoadFields, LoadOptions

if TYPE_CHECKING:
    from collections.abc import Collection

ROOT = Path(__file__).resolve().parents[1]
LOAD_OPTIONS = options_of(LoadOptions)
WIDTH = 100
HEAD = """# Python

Generated from docstrings by `scripts/reference.py`. Import these names from `zse`. They are loaded
on first use. The [guide](../guides/python.md) shows them at work.
"""
_SECTIONS = {"Args": "Arguments", "Returns": "Returns", "Yields": "Yields", "Raises": "Errors"}


@dataclass(frozen=True)
class Definition:
    """A public class or function and the module that holds it."""

    node: ast.ClassDef | ast.FunctionDef
    module: ast.Module


def python_page(public: dict[str, str]) -> str:
    """Return the page.

    Args:
        public: Name -> module.
    """
    found = [find(name, module) for name, module in public.items()]
    return "\n".join([HEAD, *map(definition_part, found)])


def find(name: str, module: str) -> Definition:
    """Return where a name is defined: in a module, or in one that it is imported from there."""
    tree = ast.parse((ROOT / f"{module.replace('.', '/')}.py").read_text())
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return Definition(node=node, module=tree)
    origin, there = imported_from(name, tree)
    if origin:
        return find(there, origin)
    raise LookupError(f"{module} does not define {name}")


def definition_part(found: Definition) -> str:
    if isinstance(found.node, ast.ClassDef):
        return class_part(found)
    text = f"## {found.node.name}\n\n{code(signature(found.node))}\n\n{prose(found.node)}"
    if takes(found.node, "ConversionFields"):
        options = find("ConversionOptions", "zse.quantize.options")
        text += "\n" + "\n".join(field_table(members(options), besides=argument_names(found.node)))
    return text


def class_part(found: Definition) -> str:
    node = found.node
    methods = [item for item in members(found) if isinstance(item, ast.FunctionDef)]
    made = next((item for item in methods if item.name == "__init__"), None)
    lines = [f"## {node.name}", ""]
    if made is not None:
        lines += [code(f"{node.name}{arguments_of(made)}"), ""]
    lines += [prose(node)]
    if made is not None and takes(made, "LoadFields"):
        lines += load_options_table()
    lines += field_table(members(found))
    groups: dict[str, list[ast.FunctionDef]] = {}
    for item in methods:
        if not item.name.startswith("_"):
            groups.setdefault(item.name, []).append(item)
    for forms in groups.values():
        shown = forms[:-1] or forms  # overloads instead of what implements them
        lines += [f"### {node.name}.{forms[0].name}", ""]
        lines += [code("\n".join(signature(form, node.name) for form in shown)), ""]
        lines += [prose(forms[-1])]
    return "\n".join(lines)


def members(found: Definition) -> list[ast.stmt]:
    """Return what a class and the classes that it is made from define, its own last."""
    inherited: list[ast.stmt] = []
    for base in found.node.bases:
        origin, there = imported_from(ast.unparse(base), found.module)
        if origin.startswith("zse."):
            inherited += members(find(there, origin))
    own = {item.name for item in found.node.body if isinstance(item, ast.FunctionDef)}
    kept = [item for item in inherited if getattr(item, "name", "") not in own]
    return [*kept, *found.node.body]


def imported_from(name: str, module: ast.Module) -> tuple[str, str]:
    """Return the module that a name comes from, empty where none, and what it is called there."""
    for item in module.body:
        for alias in item.names if isinstance(item, ast.ImportFrom) else ():
            if (alias.asname or alias.name) == name:
                return item.module or "", alias.name
    return "", name


def signature(node: ast.FunctionDef, owner: str = "") -> str:
    """Return how a function is called, or how a property is read."""
    name = f"{owner}.{node.name}" if owner else node.name
    result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    decorators = {ast.unparse(item) for item in node.decorator_list}
    if decorators & {"property", "functools.cached_property"}:
        return name + result.replace(" -> ", ": ", 1)
    text = f"{name}{arguments_of(node)}{result}"
    if len(text) <= WIDTH:
        return text
    arguments = ",\n    ".join(argument_list(node))
    return f"{name}(\n    {arguments},\n){result}"


def arguments_of(node: ast.FunctionDef) -> str:
    shown = argument_list(node)
    line = f"({', '.join(shown)})"
    return line if len(line) < WIDTH - 20 else "(\n    " + ",\n    ".join(shown) + ",\n)"


def argument_list(node: ast.FunctionDef) -> list[str]:
    """Return the arguments as they are written, without ``self``."""
    plain = [*node.args.posonlyargs, *node.args.args]
    defaults = [None] * (len(plain) - len(node.args.defaults)) + node.args.defaults
    shown = [argument(*pair) for pair in zip(plain, defaults, strict=True)]
    if plain and plain[0].arg in ("self", "cls"):
        shown = shown[1:]
    if node.args.vararg:
        shown.append(f"*{argument(node.args.vararg)}")
    elif node.args.kwonlyargs:
        shown.append("*")
    named = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
    shown += [argument(*pair) for pair in named]
    return shown + ([f"**{argument(node.args.kwarg)}"] if node.args.kwarg else [])


def argument(item: ast.arg, default: ast.expr | None = None) -> str:
    text = f"{item.arg}: {ast.unparse(item.annotation)}" if item.annotation else item.arg
    return text if default is None else f"{text} = {ast.unparse(default)}"


def takes(node: ast.FunctionDef, fields: str) -> bool:
    """Return whether a function takes the fields of a ``TypedDict`` by name."""
    return node.args.kwarg is not None and fields in ast.unparse(node.args.kwarg)


def argument_names(node: ast.FunctionDef) -> set[str]:
    return {item.arg for item in (*node.args.args, *node.args.kwonlyargs)}


def field_table(body: list[ast.stmt], besides: Collection[str] = ()) -> list[str]:
    """Return the annotated fields of a record, but for these, with the texts behind them."""
    rows = []
    for item, after in zip_longest(body, body[1:]):
        if not isinstance(item, ast.AnnAssign) or item.target.id.startswith("_"):
            continue
        if item.target.id in besides:
            continue
        text = ""
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            text = " ".join(inspect.cleandoc(after.value.value).split())
        default = f"`{ast.unparse(item.value)}`" if item.value else ""
        kind = ast.unparse(item.annotation).replace("|", "\\|")
        rows.append(f"| {item.target.id} | `{kind}` | {default} | {plain_ticks(text)} |")
    return ["| field | type | default | |", "|---|---|---|---|", *rows, ""] if rows else []


def load_options_table() -> list[str]:
    """Return what may be given by name to whatever loads a model."""
    rows = []
    for name, kind in LoadFields.__annotations__.items():
        row = LOAD_OPTIONS[{"max_sequences": "max_running"}.get(name, name)]
        written = kind.__forward_arg__.replace("|", "\\|")
        rows.append(f"| {name} | `{written}` | `{row.default!r}` | {row.meaning} |")
    return ["| option | type | default | |", "|---|---|---|---|", *rows, ""]


def prose(node: ast.ClassDef | ast.FunctionDef) -> str:
    """Return a docstring as Markdown: its sections become lists."""
    text = ast.get_docstring(node) or ""
    pieces = re.split(r"^(Args|Returns|Yields|Raises):\n", text, flags=re.MULTILINE)
    lines = [plain_ticks(pieces[0].strip()), ""]
    for title, body in zip(pieces[1::2], pieces[2::2], strict=True):
        body = textwrap.dedent(body).strip()
        if title in ("Returns", "Yields"):
            lines += [f"{_SECTIONS[title]}: {plain_ticks(' '.join(body.split()))}", ""]
            continue
        entries = re.split(r"\n(?=\S)", body)
        lines += [f"{_SECTIONS[title]}:", ""]
        for entry in entries:
            name, _, meaning = " ".join(entry.split()).partition(": ")
            lines.append(f"- `{name}`: {plain_ticks(meaning)}")
        lines.append("")
    return "\n".join(lines)


def plain_ticks(text: str) -> str:
    return text.replace("``", "`")


def code(text: str) -> str:
    return f"```python\n{text}\n```"
