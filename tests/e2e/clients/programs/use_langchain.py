"""LangChain: invoke, stream, bound tools, structured output, embeddings, both protocols."""

from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel
from shared import BASE_URL, CALL, CITY, KEY, MODEL, asked, calling


class City(BaseModel):
    """A city."""

    city: str
    people: int


@tool
def weather(city: str) -> str:
    """Tell the weather."""
    return f"21 degrees in {city}"


openai = ChatOpenAI(base_url=BASE_URL, api_key=KEY, model=MODEL)
anthropic = ChatAnthropic(base_url=BASE_URL.removesuffix("/v1"), api_key=KEY, model=MODEL)
for chat in (openai, anthropic):
    assert chat.invoke(asked("Sunny.")).text == "Sunny."
    assert "".join(chunk.text for chunk in chat.stream(asked("Sunny."))) == "Sunny."
    history = [HumanMessage(asked(CALL, "It is sunny."))]
    bound = chat.bind_tools([weather])
    history.append(bound.invoke(history))
    (call,) = history[-1].tool_calls
    assert (call["name"], call["args"]) == ("weather", {"city": "Paris"})
    history.append(ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"]))
    assert bound.invoke(history).text == "It is sunny."

expected = City(city="Paris", people=2100000)
assert openai.with_structured_output(City).invoke(asked(CITY)) == expected
by_call = calling("City", city="Paris", people=2100000)
called = openai.with_structured_output(City, method="function_calling").invoke(asked(by_call))
assert called == expected
vectors = OpenAIEmbeddings(
    base_url=BASE_URL, api_key=KEY, model=MODEL, check_embedding_ctx_length=False
).embed_documents(["one", "two"])
assert [len(vector) for vector in vectors] == [8, 8]
