"""DSPy: a predictor whose fields come out of an answer, by chat and by JSON."""

import dspy
from shared import BASE_URL, KEY, MODEL, asked

here = dspy.LM(f"openai/{MODEL}", api_base=BASE_URL, api_key=KEY, cache=False)
dspy.configure(lm=here)
chat = "[[ ## answer ## ]]\nSunny.\n\n[[ ## completed ## ]]"
assert dspy.Predict("question -> answer")(question=asked(chat)).answer == "Sunny."
with dspy.context(adapter=dspy.JSONAdapter()):
    said = dspy.Predict("question -> answer")(question=asked('{"answer": "Sunny."}'))
assert said.answer == "Sunny."
