"""Chat templates: the same text as the usual engine gives, and bounds that hold against attacks."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from zse.errors import TemplateError
from zse.models.builtin import builtin_checkpoint
from zse.text.template import ChatTemplate, load_chat_template

ROOT = Path(__file__).resolve().parents[2]

CHATML = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}{{- messages[0]['content'] }}{%- endif %}
    {{- "\\n\\n# Tools\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools>\\n{\\"name\\": <function-name>}<|im_end|>\\n" }}
{%- endif %}
{%- set ns = namespace(multi_step=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step and message.role == "user" and message.content is string and not(message.content.startswith('<tool')) %}
        {%- set ns.multi_step = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == "assistant" and message.tool_calls %}
        {{- '<|im_start|>' + message.role }}
        {%- for call in message.tool_calls %}
            {%- if call.function is defined %}{%- set call = call.function %}{%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' }}{{- call.name }}{{- '", "arguments": ' }}
            {{- call.arguments | tojson }}{{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- else %}
        {%- set content = message.content.split('</think>')[-1].lstrip('\\n') %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- endif %}
    {%- if loop.index0 == ns.last %}{{- '<!-- last -->' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""
HEADERS = """\
{{- bos_token }}
{%- if not date_string is defined %}{%- set date_string = "26 Jul 2024" %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}{{- "Environment: ipython\\n" }}{%- endif %}
{{- "Today Date: " + date_string + "\\n\\n" }}
{%- if tools is not none %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '{"name": "' + tool_call.name + '", "parameters": ' }}{{- tool_call.arguments | tojson }}{{- "}" }}
        {{- "<|eot_id|>" }}
    {%- else %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}{{- message.content }}{%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""
INST = """\
{{ bos_token }}{% for message in messages if message.role != 'tool' %}
{% if loop.first and message['role'] == 'system' %}
<<SYS>>{{ message['content'].replace('\\n', ' ') }}<</SYS>>
{% elif message['role'] == 'user' %}
{{ '[INST] ' + message['content'].strip() + ' [/INST]' }}
{% elif message['role'] in ['assistant', 'system'] %}
 {{ ' '.join([message['content'] or '', eos_token]) }}
{% endif %}
{% endfor %}
"""
MACROS = """\
{%- macro show(value, name='x') -%}
    {%- if value is mapping -%}
        {%- for key, item in value.items() -%}
            {{ key }}={{ show(item, key) }}{% if not loop.last %}, {% endif %}
        {%- endfor -%}
    {%- elif value is string -%}{{ value|upper }}
    {%- elif value is sequence -%}
        {%- for item in value -%}[{{ show(item) }}]{%- endfor -%}
    {%- else -%}{{ value }}{%- endif -%}
{%- endmacro -%}
{#- a comment with {{ braces }} -#}
{% set block %}<{{ messages|length }}>{% endset %}{{ block }}
{% with first = messages[0], name = "it's" %}{{ first.role ~ name }}{% endwith %}
{% for message in messages -%}
  {{ loop.index }}: {{ show(message) }}
{% endfor %}
{% raw %}{{ kept }}{% endraw %}
{% generation %}answer{%- endgeneration %}  end
"""
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather <now> & here, \"quoted\", 'single', é",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CALL = {"type": "function", "function": {"name": "get_weather", "arguments": {"city": "Zürich"}}}
CONVERSATIONS = {
    "question": [{"role": "user", "content": "What is <b>this</b> & that?\n"}],
    "system": [
        {"role": "system", "content": " Be brief.\nAlways. "},
        {"role": "user", "content": "Hi 🙂"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello"},
        {"role": "user", "content": "{{ 7 + 7 }} {% raw %}"},
    ],
    "tools": [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": '{"temperature": 21}'},
        {"role": "user", "content": "Thanks"},
    ],
}


def usual(source: str, **values: object) -> str:
    """Render as transformers does."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)

    def tojson(value, indent=None, separators=None, ensure_ascii=False, sort_keys=False):
        return json.dumps(
            value,
            indent=indent,
            separators=separators,
            ensure_ascii=ensure_ascii,
            sort_keys=sort_keys,
        )

    def refuse(message: str) -> None:
        raise ValueError(message)

    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = refuse
    return environment.from_string(source).render(**values)


@pytest.mark.parametrize("tools", [None, [TOOL]], ids=["without-tools", "with-tools"])
@pytest.mark.parametrize("conversation", sorted(CONVERSATIONS))
@pytest.mark.parametrize(
    "source", [CHATML, HEADERS, INST, MACROS], ids=["ml", "header", "inst", "macro"]
)
def test_templates_of_the_usual_shapes_render_as_the_usual_engine_does(source, conversation, tools):
    messages = CONVERSATIONS[conversation]
    template = ChatTemplate(source, bos_token="<s>", eos_token="</s>")
    values = {"messages": messages, "tools": tools, "bos_token": "<s>", "eos_token": "</s>"}
    without_marks = source.replace("{% generation %}", "").replace("{%- endgeneration %}", "{#- #}")
    for prompt in (True, False):
        wanted = usual(without_marks, **values, add_generation_prompt=prompt)
        assert template.render(messages, tools, add_generation_prompt=prompt) == wanted


def test_the_built_in_template_renders_as_the_usual_engine_does():
    config = json.loads((builtin_checkpoint("tiny") / "tokenizer_config.json").read_text())
    source = config["chat_template"]
    for messages in CONVERSATIONS.values():
        for tools in (None, [TOOL]):
            wanted = usual(source, messages=messages, tools=tools, add_generation_prompt=True)
            assert ChatTemplate(source).render(messages, tools) == wanted


def test_extra_variables_reach_the_template():
    template = ChatTemplate(CHATML)
    text = template.render(CONVERSATIONS["question"], enable_thinking=False)
    assert text.endswith("<think>\n\n</think>\n\n")


@pytest.mark.parametrize("name", ["tokenize", "documents", "_private", "self", "messages"])
def test_reserved_variables_cannot_be_set(name):
    with pytest.raises(TemplateError, match=f"'{name}' cannot be set"):
        ChatTemplate("{{ x }}").render([], **{name: 1})


def test_a_template_s_own_refusal_is_its_message():
    template = ChatTemplate("{{ raise_exception('Roles must alternate, é') }}")
    with pytest.raises(TemplateError) as caught:
        template.render([])
    assert caught.value.message == "Roles must alternate, é"
    assert caught.value.http_status == 400


def test_the_date_is_available():
    year = str(datetime.datetime.now().astimezone().year)
    assert year in ChatTemplate("{{ strftime_now('%d %b %Y') }}").render([])


def test_an_error_does_not_show_the_template():
    secret = "{# private #}\n{{ messages.nothing.more }}"
    with pytest.raises(TemplateError) as caught:
        ChatTemplate(secret).render([])
    assert "private" not in str(caught.value)
    with pytest.raises(TemplateError, match="does not compile") as caught:
        ChatTemplate("{# private #}\n{% if %}")
    assert "private" not in str(caught.value)


class Sections(dict):
    """A stand-in for a reader: sections by name."""

    has_section = dict.__contains__

    def section(self, name: str) -> memoryview:
        return memoryview(self[name])


def test_the_template_file_wins_over_the_tokenizer_s_configuration():
    config = json.dumps({"chat_template": "old", "bos_token": {"content": "<s>"}}).encode()
    sections = Sections({"tokenizer_config.json": config})
    assert load_chat_template(sections).render([]) == "old"
    sections["chat_template.jinja"] = b"{{ bos_token }}new"
    assert load_chat_template(sections).render([]) == "<s>new"


def test_of_several_named_templates_the_default_is_taken():
    named = [{"name": "tool_use", "template": "a"}, {"name": "default", "template": "b"}]
    config = json.dumps({"chat_template": named}).encode()
    assert load_chat_template(Sections({"tokenizer_config.json": config})).render([]) == "b"


def test_a_model_without_a_template_says_so_and_how_to_give_one():
    with pytest.raises(TemplateError, match="no chat template") as refused:
        load_chat_template(Sections())
    assert "--chat-template FILE" in refused.value.hint


DOUBLING = (
    "{% set ns = namespace(s='ab') %}{% for i in range(60) %}STEP{% endfor %}{{ ns.s|length }}"
)
ATTACKS = {
    "huge repeat": "{{ 'a'*1000000000 }}",
    "huge list": "{{ [1]*50000000 }}",
    "doubling by namespace": DOUBLING.replace("STEP", "{% set ns.s = ns.s ~ ns.s %}"),
    "doubling by plus": DOUBLING.replace("STEP", "{% set ns.s = ns.s + ns.s %}"),
    "doubling by join": DOUBLING.replace("STEP", "{% set ns.s = ns.s.join(['','','']) %}"),
    "doubling by filter": DOUBLING.replace("STEP", "{% set ns.s = [ns.s, ns.s]|join %}"),
    "doubling lists": DOUBLING.replace("STEP", "{% set ns.s = [ns.s, ns.s] %}"),
    "doubling maps": DOUBLING.replace("STEP", "{% set ns.s = {'a': ns.s, 'b': ns.s} %}"),
    "doubling sets": "{% set x = 'ab' %}" + "{% set x = x ~ x %}" * 60,
    "doubling block sets": "{% set x %}ab{% endset %}"
    + "{% set x %}{{ x }}{{ x }}{% endset %}" * 60,
    "doubling with": "{% set x0 = 'ab' %}"
    + "".join(f"{{% with x{i + 1} = x{i} ~ x{i} %}}" for i in range(60))
    + "{% endwith %}" * 60,
    "doubling macro": "{% macro f(s, n) %}{% if n %}{{ f(s ~ s, n - 1) }}{% endif %}{% endmacro %}"
    "{{ f('ab', 60) }}",
    "squaring replace": "{% set m = messages[0].content %}{{ m.replace('', m)|length }}",
    "squaring replace filter": "{% set m = messages[0].content %}{{ m|replace('', m)|length }}",
    "wide format": "{{ '{:>1000000000}'.format('a')|length }}",
    "old format": "{{ '%1000000000d' % 3 }}",
    "endless printing": "{% for i in range(90000) %}{{ messages[0].content }}{% endfor %}",
    "endless literal text": "{% for i in range(90000) %}" + "text " * 2000 + "{% endfor %}",
    "nested loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "huge range": "{% for i in range(10**12) %}{% endfor %}",
    "endless recursion": "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
    "recursive loop": "{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}",
    "a namespace in itself": "{% set ns = namespace(a=1) %}{% set ns.a = ns %}{{ ns }}",
    "a namespace in a list": "{% set ns = namespace(a=1) %}{% set ns.a = [ns] %}{{ ns.a }}",
    "a namespace by alias": "{% set q = [namespace(a=1)] %}{% set p = q[0] %}{% set p.a = q %}{{ q }}",
    "a namespace made later": "{% macro f() %}{% set ns.a = ns %}{% endmacro %}"
    "{% set ns = namespace(a=1) %}{{ f() }}{{ ns.a }}",
    "a namespace behind what looks like a tag": "{% raw %}{{{% endraw %}"
    "{% set ns = namespace(a=1) %}{% set ns.a = ns %}{{ ns }}{# }} #}",
    "a namespace in a comment's shade": "{{ '{#' }}{% set ns = namespace(a=1) %}"
    "{% set ns.a = ns %}{{ ns }}{# #}",
    "a huge text behind brackets": "{{ {'a': {'b': 1}}.a ~ 'a'*1000000000 }}",
    "a huge text in a statement": "{% set x = {'a': 5 %2, 'b': 'a'*1000000000} %}{{ x }}",
    "tags that never end": "{#" + "{{" * 90_000,
    "prints that never end": "#{{{{" * 40_000,
    "statements that never end": "{% set a " * 20_000,
    "blank statements": ("{% set a" + " " * 4000 + "b %}") * 49,
    "wide indent": "{{ messages|tojson(indent=100000000)|length }}" * 3 + "{{ 'a' * 2 }}",
    "long date": "{{ strftime_now('%c' ~ messages[0].content) }}",
    "class access": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "class of a message": "{{ messages[0].__class__.__init__.__globals__ }}",
    "globals": "{{ lipsum.__globals__['os'].popen('id').read() }}",
    "function internals": "{{ raise_exception.__globals__.keys() }}",
    "own names": "{{ _zse_check.__self__ }}",
    "include": "{% include '/etc/passwd' %}",
    "import": "{% import 'os' as os %}",
    "deep blocks": "{% if 1 %}" * 9000 + "{% endif %}" * 9000,
    "deep brackets": "{{ " + "[" * 2000 + "]" * 2000 + " }}",
    "a huge tag": "{{ " + " ~ ".join(["messages[0].content"] * 1000) + " }}",
    "a huge source": "x" * 300_000,
    "an open string": "{{ 'abc }}",
    "unknown role": "{{ raise_exception('no') }}",
}
CHILD = """
import json, resource, sys
from zse.errors import TemplateError
from zse.text.template import ChatTemplate
limit = 1 << 30
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
resource.setrlimit(resource.RLIMIT_CPU, (100, 100))
for name, source in json.load(sys.stdin).items():
    messages = [{"role": "user", "content": "a" * 20000}]
    try:
        text = ChatTemplate(source).render(messages)
        print(json.dumps([name, "text", text[:100]]), flush=True)
    except TemplateError as error:
        print(json.dumps([name, "refused", str(error)]), flush=True)
"""


def test_every_attack_ends_in_a_refusal_within_one_gigabyte():
    # One child with an address-space limit: a crash or an unbounded allocation ends it at once.
    done = subprocess.run(
        [sys.executable, "-c", CHILD],
        input=json.dumps(ATTACKS),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert [name for name, _, _ in results] == list(ATTACKS), done.stderr[-2000:]
    survived = [(name, text) for name, kind, text in results if kind != "refused"]
    assert survived == []
    assert done.returncode == 0


def test_values_nested_too_deeply_are_refused():
    value: list = []
    for _ in range(200):
        value = [value]
    with pytest.raises(TemplateError, match="nested deeper"):
        ChatTemplate("{{ x|length }}").render([], x=value)


def test_a_long_conversation_of_honest_size_renders():
    messages = [
        {"role": "user" if i % 2 == 0 else "assistant", "content": f"message {i} " * 200}
        for i in range(400)
    ]
    assert len(ChatTemplate(CHATML).render(messages)) > 800_000


def test_a_short_conversation_beside_it_takes_nothing_from_a_long_one_s_bounds():
    template = ChatTemplate(
        "{% for m in messages %}{% set text = m.content %}{{ text }}{% endfor %}"
    )
    conversations = [[{"content": "x" * 200_000}] * 3, [{"content": "x"}] * 300] * 2
    lengths: list[int] = []

    def render(messages):
        lengths.extend(len(template.render(messages)) for _ in range(40))

    threads = [threading.Thread(target=render, args=(each,)) for each in conversations]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert sorted(lengths) == [300] * 80 + [600_000] * 80
