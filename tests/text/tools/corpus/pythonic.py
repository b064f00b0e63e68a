"""Llama 4, Olmo 3 and others that write Python."""

from __future__ import annotations

from corpus.sample import PARIS, TIME, UNICODE, Sample

PYTHONIC = [
    Sample("pythonic", "one call", '[get_weather(city="Paris")]', calls=(PARIS,)),
    Sample("pythonic", "two calls", "[get_weather(city='Paris'), get_time()]", calls=(PARIS, TIME)),
    Sample(
        "pythonic",
        "between markers",
        '<|python_start|>[get_weather(city="Paris")]<|python_end|>',
        calls=(PARIS,),
    ),
    Sample(
        "pythonic",
        "line by line",
        '<function_calls>\nget_weather(city="Paris")\nget_time()\n</function_calls>',
        calls=(PARIS, TIME),
    ),
    Sample(
        "pythonic",
        "all literals",
        "[write_file(path='a', options={'a': [1, (2, -3.5)], 'b': None}, is_final=True, lines=[])]",
        calls=(
            (
                "write_file",
                {
                    "path": "a",
                    "options": {"a": [1, [2, -3.5]], "b": None},
                    "is_final": True,
                    "lines": [],
                },
            ),
        ),
    ),
    Sample(
        "pythonic",
        "a number that JSON has not",
        "[get_weather(city=NaN)]",
        calls=(("get_weather", {"city": "NaN"}),),
    ),
    Sample(
        "pythonic",
        "JSON's words",
        "[write_file(is_final=true, size=null)]",
        calls=(("write_file", {"is_final": True, "size": None}),),
    ),
    Sample(
        "pythonic",
        "brackets and quotes in strings",
        """[write_file(path="a)],'", content='it\\'s "so"')]""",
        calls=(("write_file", {"path": "a)],'", "content": 'it\'s "so"'}),),
    ),
    Sample(
        "pythonic", "all letters", f'[get_weather(city="{UNICODE[1]["city"]}")]', calls=(UNICODE,)
    ),
    Sample(
        "pythonic",
        "what is no literal",
        "[get_weather(city=open('x').read())]",
        calls=(("get_weather", {"city": "open('x').read()"}),),
    ),
    Sample("pythonic", "text after", "[get_time()] now", "now", (TIME,)),
    Sample("pythonic", "a list", '["a", 1]', '["a", 1]'),
    Sample("pythonic", "a name nobody offered", "[rm(a=1)]", "[rm(a=1)]"),
    Sample(
        "pythonic",
        "a name without brackets",
        "get_time() tells the time",
        "get_time() tells the time",
    ),
    Sample(
        "pythonic",
        "cut",
        "[get_weather(city='Paris', days=",
        calls=(("get_weather", '{"city": "Paris"'),),
    ),
]
