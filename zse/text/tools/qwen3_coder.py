"""Qwen3-Coder: a tag for the function and one for each parameter; values are bare text.

<tool_call>
<function=get_weather>
<parameter=city>
Paris
</parameter>
</function>
</tool_call>
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from zse.text.tools.format import NAME, CallFormat
from zse.text.tools.grammar import CallGrammar, joined
from zse.text.tools.hermes import CLOSE, OPEN
from zse.text.tools.typed_values import ArgumentWriter, parameter_rules

if TYPE_CHECKING:
    from collections.abc import Callable

    from zse.text.scanner import Reading, Scanner
    from zse.text.tools.format import Offered
    from zse.text.tools.grammar import CallTool, Rules

_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_PARAMETER, _PARAMETER_END = "<parameter=", "</parameter>"


def _read(scanner: Scanner, offered: Offered) -> Reading[None]:
    # Smaller models forget the outer tag.
    while opener := (yield from scanner.until((OPEN, _FUNCTION), scanner.say)):
        scanner.keep(opener)
        if opener == OPEN:
            yield from scanner.skip_space()
            if not (yield from scanner.match(_FUNCTION)):
                scanner.say_kept()
                continue
        name = yield from scanner.skip(NAME)
        if not (yield from scanner.match(">")) or name not in offered:
            scanner.say_kept()
            continue
        scanner.open_call(name)
        yield from _read_parameters(scanner, ArgumentWriter(scanner, offered[name]))


def _read_parameters(scanner: Scanner, arguments: ArgumentWriter) -> Reading[None]:
    yield from scanner.skip_space()
    while (yield from scanner.match(_PARAMETER)):
        key: list[str] = []
        if not (yield from scanner.until((">",), key.append)):
            return
        yield from scanner.match("\n")
        if not (yield from arguments.read_value("".join(key), partial(_read_value, scanner))):
            return
        yield from scanner.skip_space()
    if not (yield from scanner.peek()):
        return  # cut: so are the arguments
    arguments.end()
    yield from scanner.match(_FUNCTION_END)
    yield from scanner.skip_space()
    yield from scanner.match(CLOSE)


def _read_value(scanner: Scanner, sink: Callable[[str], None]) -> Reading[str]:
    return scanner.until(("\n" + _PARAMETER_END, _PARAMETER_END), sink)


def _call_rule(rules: Rules, tool: CallTool) -> str:
    parameters = parameter_rules(
        rules, tool, before=f"{_PARAMETER}%s>\n", after=f"\n{_PARAMETER_END}", between="\n"
    )
    begins = rules.text(f"\n{_FUNCTION}{tool.name}>\n")
    return joined(begins, parameters, rules.text(f"{_FUNCTION_END}\n{CLOSE}"))


GRAMMAR = CallGrammar(call=_call_rule, opener=OPEN, between="\n" + OPEN)
FORMAT = CallFormat(name="qwen3_coder", read=_read, tags=(OPEN, CLOSE), grammar=GRAMMAR)
