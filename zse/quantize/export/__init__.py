"""Back to a checkpoint: a .zse file as safetensors, config.json and tokenizer that others load.

``model.export_model`` is the way in. A file is read as it was written, a few rows at a time, by the
same specs that conversion goes by: they say which tensors of a checkpoint a weight is made of.
"""
