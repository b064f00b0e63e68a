"""OpenAI's agents: tools, hand-overs, typed output; over chat and over responses."""

import asyncio

from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from pydantic import BaseModel
from shared import BASE_URL, CALL, CITY, KEY, MODEL, asked

set_tracing_disabled(True)
client = AsyncOpenAI(base_url=BASE_URL, api_key=KEY)


class City(BaseModel):
    city: str
    people: int


@function_tool
def weather(city: str) -> str:
    """Tell the weather."""
    return f"21 degrees in {city}"


async def main():
    for kind in (OpenAIChatCompletionsModel, OpenAIResponsesModel):
        model = kind(model=MODEL, openai_client=client)
        agent = Agent(name="a", instructions="Be brief.", tools=[weather], model=model)
        told = await Runner.run(agent, asked(CALL, "It is sunny."))
        assert told.final_output == "It is sunny.", kind
        streamed = Runner.run_streamed(agent, asked(CALL, "It is sunny."))
        async for _ in streamed.stream_events():
            pass
        assert streamed.final_output == "It is sunny.", kind
        typed = Agent(name="b", output_type=City, model=model)
        made = await Runner.run(typed, asked(CITY))
        assert made.final_output == City(city="Paris", people=2100000), kind


asyncio.run(main())
