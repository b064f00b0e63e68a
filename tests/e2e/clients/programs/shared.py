"""What the programs have in common: the server, the words that dictate answers, one tool."""

import json
import sys

BASE_URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000/v1"
KEY = "not-needed"
MODEL = "dictated"
CITY = '{"city": "Paris", "people": 2100000}'
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'


def asked(*answers):
    """Return a user's message that dictates what is answered, turn by turn."""
    return "What is the weather in Paris? answers: " + " ||| ".join(answers)


def calling(name, **arguments):
    """Return an answer that calls a tool."""
    call = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{call}\n</tool_call>"
