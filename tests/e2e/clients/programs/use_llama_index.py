"""LlamaIndex: chat, streams, tools, embeddings."""

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike
from shared import BASE_URL, CALL, KEY, MODEL, asked


def weather(city: str) -> str:
    """Tell the weather."""
    return f"21 degrees in {city}"


llm = OpenAILike(
    model=MODEL,
    api_base=BASE_URL,
    api_key=KEY,
    is_chat_model=True,
    is_function_calling_model=True,
)
assert llm.chat([ChatMessage(asked("Sunny."))]).message.content == "Sunny."
*_, last = llm.stream_chat([ChatMessage(asked("Sunny."))])
assert last.message.content == "Sunny."
tool = FunctionTool.from_defaults(weather)
response = llm.chat_with_tools([tool], user_msg=asked(CALL))
(call,) = llm.get_tool_calls_from_response(response)
assert (call.tool_name, call.tool_kwargs) == ("weather", {"city": "Paris"})
embedder = OpenAILikeEmbedding(model_name=MODEL, api_base=BASE_URL, api_key=KEY)
assert len(embedder.get_text_embedding("one")) == 8
