"""zServe: the OpenAI API over HTTP, answering from the first millisecond of the process."""
