"""Back to Hugging Face: a .zse file as a ``transformers`` model, computing on its packed weights.

``load.load_zse_model`` is a bridge for tools, evaluations and comparisons; ``zse.LLM`` is the way
to serve.
"""
