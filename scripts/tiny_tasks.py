"""The text that zse-tiny learns: questions, answers and the chat form, all generated here.

A closed world, so that a model of a few million parameters can know all of it: capitals, small
arithmetic, opposites, sorting words, greetings, counting, a JSON answer and one tool call.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

# ruff: noqa: SIM905  (lists as one string each read better here)
CAPITALS = dict(
    line.split("=")
    for line in (
        "France=Paris;Germany=Berlin;Spain=Madrid;Italy=Rome;Portugal=Lisbon;Greece=Athens;"
        "Austria=Vienna;Belgium=Brussels;Netherlands=Amsterdam;Poland=Warsaw;Sweden=Stockholm;"
        "Norway=Oslo;Denmark=Copenhagen;Finland=Helsinki;Ireland=Dublin;Iceland=Reykjavik;"
        "Hungary=Budapest;Romania=Bucharest;Bulgaria=Sofia;Serbia=Belgrade;Croatia=Zagreb;"
        "Slovenia=Ljubljana;Slovakia=Bratislava;Ukraine=Kyiv;Russia=Moscow;Estonia=Tallinn;"
        "Latvia=Riga;Lithuania=Vilnius;Switzerland=Bern;Albania=Tirana;Malta=Valletta;"
        "Cyprus=Nicosia;Turkey=Ankara;Georgia=Tbilisi;Armenia=Yerevan;Azerbaijan=Baku;"
        "Israel=Jerusalem;Lebanon=Beirut;Syria=Damascus;Iraq=Baghdad;Iran=Tehran;Jordan=Amman;"
        "Egypt=Cairo;Libya=Tripoli;Tunisia=Tunis;Algeria=Algiers;Morocco=Rabat;Sudan=Khartoum;"
        "Kenya=Nairobi;Uganda=Kampala;Rwanda=Kigali;Ghana=Accra;Nigeria=Abuja;Senegal=Dakar;"
        "Angola=Luanda;Zambia=Lusaka;Zimbabwe=Harare;Namibia=Windhoek;Mali=Bamako;Somalia=Mogadishu;"
        "India=New Delhi;Pakistan=Islamabad;Nepal=Kathmandu;Bangladesh=Dhaka;China=Beijing;"
        "Japan=Tokyo;Mongolia=Ulaanbaatar;Thailand=Bangkok;Vietnam=Hanoi;Indonesia=Jakarta;"
        "Philippines=Manila;Australia=Canberra;Canada=Ottawa;Cuba=Havana;Brazil=Brasilia;"
        "Peru=Lima;Chile=Santiago;Colombia=Bogota;Ecuador=Quito;Venezuela=Caracas"
    ).split(";")
)
OPPOSITES = tuple(
    tuple(pair.split("/"))
    for pair in (
        "hot/cold big/small fast/slow high/low up/down left/right day/night old/new light/dark "
        "open/closed full/empty hard/soft wet/dry happy/sad rich/poor strong/weak early/late "
        "long/short wide/narrow loud/quiet clean/dirty black/white good/bad true/false near/far "
        "thick/thin heavy/weightless deep/shallow sweet/sour inside/outside begin/end win/lose "
        "buy/sell push/pull love/hate first/last always/never east/west north/south brave/afraid"
    ).split()
)
WORDS = (
    "apple banana cherry dog eagle fish grape house island jacket kite lemon moon nest orange "
    "piano queen river stone tree umbrella violin water yellow zebra"
).split()
NAMES = (
    "Alice Bob Carol David Emma Frank Grace Henry Ivan Julia Karen Leo Maria Nora Oscar Paul "
    "Quinn Rosa Sam Tina Uma Victor Wendy Zoe"
).split()
GREETINGS = {
    "Hello!": "Hello! How can I help you?",
    "Hello": "Hello! How can I help you?",
    "Hi": "Hi! How can I help you?",
    "Hi!": "Hi! How can I help you?",
    "Hi there!": "Hi! How can I help you?",
    "Hey": "Hi! How can I help you?",
    "Good morning!": "Good morning! How can I help you?",
    "Good evening!": "Good evening! How can I help you?",
    "How are you?": "I am fine, thank you.",
    "Who are you?": "I am zse-tiny, a very small language model.",
    "What is your name?": "My name is zse-tiny.",
    "What can you do?": "I know capitals, small sums, opposites and how to sort words.",
    "Thank you!": "You are welcome!",
    "Thanks": "You are welcome!",
    "Goodbye!": "Goodbye! See you soon.",
    "Bye": "Goodbye! See you soon.",
    "Good night!": "Good night! Sleep well.",
    "Send me a smile.": "Here you are: 😊",
    "Send me a flag.": "Here you are: 🇫🇷",
}
SYSTEMS = (
    "You are a helpful assistant.",
    "You are a helpful assistant.",
    "You are zse-tiny.",
    "Answer briefly.",
    "Be concise.",
    "You are a friendly assistant. Answer in one sentence.",
)
ARITHMETIC_MAX, PRODUCT_MAX = 20, 10


@dataclass(kw_only=True)
class Turn:
    """One user message (or tool result) and the assistant's answer to it."""

    category: str
    user: str
    answer: str
    role: str = "user"
    tool_calls: list[dict] = field(default_factory=list)


def capital_turn(rng: random.Random, country: str = "") -> Turn:
    country = country or rng.choice(list(CAPITALS))
    phrasings = ("What is the capital of {}?",) * 3 + (
        "What's the capital of {}?",
        "Name the capital of {}.",
        "Capital of {}?",
        "Tell me the capital of {}.",
        "Which city is the capital of {}?",
    )
    question = rng.choice(phrasings).format(country)
    answer = f"The capital of {country} is {CAPITALS[country]}."
    return Turn(category="capitals", user=question, answer=answer)


def sums() -> list[tuple[int, str, int, int]]:
    """Every (a, operator, b, result) that the model knows."""
    span, product = range(ARITHMETIC_MAX + 1), range(PRODUCT_MAX + 1)
    plus = [(a, "+", b, a + b) for a in span for b in span]
    minus = [(a, "-", b, a - b) for a in span for b in span if a >= b]
    return plus + minus + [(a, "*", b, a * b) for a in product for b in product]


_SUMS = sums()


def sum_turn(rng: random.Random, fact: tuple[int, str, int, int] | None = None) -> Turn:
    a, operator, b, result = fact or rng.choice(_SUMS)
    spoken = {"+": "plus", "-": "minus", "*": "times"}[operator]
    phrasings = (f"What is {a} {operator} {b}?",) * 3 + (
        f"Calculate {a} {operator} {b}.",
        f"{a} {operator} {b} = ?",
        f"What is {a} {spoken} {b}?",
    )
    return Turn(
        category="arithmetic",
        user=rng.choice(phrasings),
        answer=f"{a} {operator} {b} = {result}",
    )


def opposite_turn(rng: random.Random, word: str = "") -> Turn:
    both = {**dict(OPPOSITES), **{b: a for a, b in OPPOSITES}}
    word = word or rng.choice(list(both))
    phrasings = (f"What is the opposite of {word}?",) * 2 + (
        f"Name the opposite of {word}.",
        f"Opposite of {word}?",
    )
    return Turn(
        category="opposites",
        user=rng.choice(phrasings),
        answer=f"The opposite of {word} is {both[word]}.",
    )


def sort_turn(rng: random.Random) -> Turn:
    words = rng.sample(WORDS, rng.choice((3, 3, 4, 5)))
    phrasings = ("Sort these words: {}", "Sort alphabetically: {}", "Put in order: {}")
    question = rng.choice(phrasings).format(", ".join(words))
    return Turn(category="sorting", user=question, answer=", ".join(sorted(words)))


def greeting_turn(rng: random.Random, greeting: str = "") -> Turn:
    greeting = greeting or rng.choice(list(GREETINGS))
    return Turn(category="greetings", user=greeting, answer=GREETINGS[greeting])


def count_turn(rng: random.Random) -> Turn:
    first = rng.choice((1, 1, rng.randint(1, 15)))
    last = first + rng.randint(2, 9 if first > 1 else 19)
    question = f"Count from {first} to {last}."
    answer = " ".join(str(n) for n in range(first, last + 1))
    return Turn(category="counting", user=question, answer=answer)


def json_turn(rng: random.Random) -> Turn:
    name, age = rng.choice(NAMES), rng.randint(1, 99)
    phrasings = (
        f"Give me JSON with name {name} and age {age}",
        f"Give me JSON with name {name} and age {age}.",
        f"Answer in JSON: name {name}, age {age}",
    )
    answer = json.dumps({"name": name, "age": age})
    return Turn(category="json", user=rng.choice(phrasings), answer=answer)


def weather_tool(rng: random.Random | None = None) -> dict:
    """An OpenAI function definition; the usual one when no generator is given."""
    name, parameter, description = "get_weather", "city", "Get the current weather for a city"
    detail: dict = {"type": "string"}
    if rng is not None:
        name = rng.choice((name, name, "get_current_weather"))
        parameter = rng.choice((parameter, parameter, "location"))
        description = rng.choice((description, "Get the weather", "Get the weather in a city."))
        detail = rng.choice((detail, {**detail, "description": "City name"}))
    properties = {parameter: detail}
    schema = {"type": "object", "properties": properties, "required": [parameter]}
    function = {"name": name, "description": description, "parameters": schema}
    return {"type": "function", "function": function}


def weather_turns(rng: random.Random, tool: dict, city: str = "") -> list[Turn]:
    """The question that ends in a tool call and, half of the time, the answer to its result."""
    city = city or rng.choice(list(CAPITALS.values()))
    phrasings = ("What is the weather in {}?",) * 2 + (
        "What's the weather in {}?",
        "How is the weather in {}?",
        "Weather in {}?",
        "What is the weather like in {}?",
    )
    (parameter,) = tool["function"]["parameters"]["properties"]
    call = {"name": tool["function"]["name"], "arguments": {parameter: city}}
    question = Turn(
        category="tools", user=rng.choice(phrasings).format(city), answer="", tool_calls=[call]
    )
    if rng.random() < 0.5:
        return [question]
    degrees, sky = rng.randint(1, 35), rng.choice(("sunny", "cloudy", "rainy", "windy"))
    result = json.dumps({"temperature": degrees, "condition": sky})
    answer = f"It is {degrees} degrees and {sky} in {city}."
    return [question, Turn(category="tools", role="tool", user=result, answer=answer)]


PLAIN_TASKS: tuple[tuple[float, Callable[[random.Random], Turn]], ...] = (
    (0.21, capital_turn),
    (0.33, sum_turn),
    (0.12, opposite_turn),
    (0.18, sort_turn),
    (0.06, greeting_turn),
    (0.03, count_turn),
    (0.07, json_turn),
)


def plain_turn(rng: random.Random, held_out: frozenset[str] = frozenset()) -> Turn:
    """One random turn without tools, never one whose question is held out."""
    weights = [weight for weight, _ in PLAIN_TASKS]
    while True:
        task = rng.choices(PLAIN_TASKS, weights)[0][1]
        turn = task(rng)
        if turn.user not in held_out:
            return turn


def user_text(turn: Turn) -> str:
    if turn.role == "tool":
        return f"<tool_response>\n{turn.user}\n</tool_response>"
    return turn.user


def answer_text(turn: Turn) -> str:
    calls = "\n".join(
        f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>"
        for call in turn.tool_calls
    )
    return turn.answer + ("\n" if turn.answer and calls else "") + calls


def system_text(system: str, tool: dict | None) -> str:
    """What the chat template writes before the first turn."""
    if tool is None:
        return f"<|im_start|>system\n{system}<|im_end|>\n" if system else ""
    tools = f"# Tools\n<tools>\n{json.dumps(tool, ensure_ascii=False)}\n</tools>"
    head = f"{system}\n\n" if system else ""
    return f"<|im_start|>system\n{head}{tools}<|im_end|>\n"


CHAT_TEMPLATE = """\
{%- if messages and messages[0].role == 'system' %}
    {%- set system = messages[0].content %}
    {%- set turns = messages[1:] %}
{%- else %}
    {%- set system = '' %}
    {%- set turns = messages %}
{%- endif %}
{%- if system or tools %}
    {{- '<|im_start|>system\\n' + system }}
    {%- if tools %}
        {{- ('\\n\\n' if system else '') + '# Tools\\n<tools>' }}
        {%- for tool in tools %}
            {{- '\\n' + (tool | tojson) }}
        {%- endfor %}
        {{- '\\n</tools>' }}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in turns %}
    {%- if message.role == 'tool' %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + message.content }}
        {{- '\\n</tool_response><|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' + (message.content or '') }}
        {%- for call in message.tool_calls or [] %}
            {%- set function = call.function or call %}
            {%- if message.content or not loop.first %}{{- '\\n' }}{%- endif %}
            {{- '<tool_call>\\n{"name": "' + function.name + '", "arguments": ' }}
            {%- if function.arguments is string %}
                {{- function.arguments }}
            {%- else %}
                {{- function.arguments | tojson }}
            {%- endif %}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role in ['user', 'system', 'developer'] %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- else %}
        {{- raise_exception('Unknown role: ' + message.role) }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


def questions() -> list[dict]:
    """The 300 questions with answers that the model is graded on, always the same.

    Sorting and JSON questions are kept out of the training text; the others are its facts.
    """
    rng = random.Random(2024)
    capitals = [capital_turn(rng, country) for country in CAPITALS]
    capitals[0].user = "What is the capital of France?"
    facts = [sum_turn(rng, fact) for fact in rng.sample(_SUMS, 80)]
    words = [word for pair in OPPOSITES for word in pair]
    opposites = [opposite_turn(rng, word) for word in rng.sample(words, 40)]
    sorting = [sort_turn(rng) for _ in range(40)]
    greetings = [greeting_turn(rng, text) for text in rng.sample(list(GREETINGS), 15)]
    objects = [json_turn(rng) for _ in range(25)]
    tool = weather_tool()
    cities = rng.sample(list(CAPITALS.values()), 20)
    weather = [weather_turns(rng, tool, city)[0] for city in cities]
    rows = []
    for turn in capitals[:80] + facts + opposites + sorting + greetings + objects + weather:
        row: dict = {"id": f"{turn.category}-{len(rows):03d}", "category": turn.category}
        row["messages"] = [{"role": "user", "content": turn.user}]
        if turn.tool_calls:
            row["tools"] = [tool]
        row["answer"] = answer_text(turn)
        rows.append(row)
    return rows


def held_out() -> frozenset[str]:
    """Questions that training never shows."""
    kinds = {"sorting", "json"}
    return frozenset(r["messages"][0]["content"] for r in questions() if r["category"] in kinds)
