"""OpenAI's Responses API: items in, items out, kept so that a conversation can go on."""
