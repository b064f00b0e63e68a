"""instructor: objects out of chats, by tools, by JSON schema, and piece by piece."""

import instructor
from openai import OpenAI
from pydantic import BaseModel
from shared import BASE_URL, CITY, KEY, MODEL, asked, calling


class City(BaseModel):
    city: str
    people: int


openai = OpenAI(base_url=BASE_URL, api_key=KEY)
modes = instructor.Mode
for mode in (modes.TOOLS, modes.JSON_SCHEMA, modes.JSON):
    client = instructor.from_openai(openai, mode=mode)

    def user(tool, mode=mode):
        by_call = calling(tool, city="Paris", people=2100000)
        answer = by_call if mode is modes.TOOLS else CITY
        return {"model": MODEL, "messages": [{"role": "user", "content": asked(answer)}]}

    made = client.chat.completions.create(response_model=City, **user("City"))
    assert (made.city, made.people) == ("Paris", 2100000), mode
    *_, last = client.chat.completions.create_partial(response_model=City, **user("PartialCity"))
    assert (last.city, last.people) == ("Paris", 2100000), mode
