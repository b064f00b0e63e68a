"""Everything that knows text: tokenizer, incremental detokenizer, chat template, tool calls."""
