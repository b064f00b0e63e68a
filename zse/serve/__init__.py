"""zServe: the OpenAI API over HTTP."""
