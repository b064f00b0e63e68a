"""Write the tables of inputs and outputs into the modules' READMEs: python tests/infra/readme_tables.py"""

import re
from pathlib import Path

import modules

MARK = re.compile(r"<!-- (inputs|outputs) -->\n.*?<!-- end -->", re.S)


def written(value: object) -> str:
    """Return a default the way it is written in HCL."""
    if value is None:
        return "`null`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, list):
        return f"`[{', '.join(map(str, value))}]`"
    return f"`{value}`" if value != {} else "`{}`"


def table(folder: Path, kind: str) -> str:
    if kind == "outputs":
        rows = [
            f"| `{name}` | {body['description'].strip(chr(34))} |"
            for name, body in modules.named(folder, "output").items()
        ]
        return "\n".join(["| output | what |", "|---|---|", *rows])
    rows = []
    for name, body in modules.named(folder, "variable").items():
        default = written(body["default"]) if "default" in body else "**required**"
        kind = str(body["type"]).strip("${}")
        rows.append(f"| `{name}` | {kind} | {default} | {body['description'].strip(chr(34))} |")
    return "\n".join(["| input | type | default | what |", "|---|---|---|---|", *rows])


def filled(folder: Path) -> str:
    """Return the README with fresh tables."""
    text = (folder / "README.md").read_text()
    return MARK.sub(lambda m: f"<!-- {m[1]} -->\n{table(folder, m[1])}\n<!-- end -->", text)


if __name__ == "__main__":
    for module in modules.MODULES:
        (module / "README.md").write_text(filled(module))
