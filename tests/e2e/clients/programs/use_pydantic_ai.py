"""Pydantic AI: agents with tools, typed output, streams; by chat and by responses."""

import asyncio

from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from shared import BASE_URL, CALL, KEY, MODEL, asked, calling


class City(BaseModel):
    city: str
    people: int


provider = OpenAIProvider(base_url=BASE_URL, api_key=KEY)
MODELS = (
    OpenAIChatModel(MODEL, provider=provider),
    OpenAIResponsesModel(MODEL, provider=provider),
)


async def main():
    for model in MODELS:
        agent = Agent(model)

        @agent.tool_plain
        def weather(city: str) -> str:
            """Tell the weather."""
            return f"21 degrees in {city}"

        told = await agent.run(asked(CALL, "It is sunny."))
        assert told.output == "It is sunny.", model
        async with agent.run_stream(asked("Sunny.")) as stream:
            assert await stream.get_output() == "Sunny.", model
        typed = Agent(model, output_type=City)
        by_call = calling("final_result", city="Paris", people=2100000)
        made = await typed.run(asked(by_call))
        assert made.output == City(city="Paris", people=2100000), model


asyncio.run(main())
