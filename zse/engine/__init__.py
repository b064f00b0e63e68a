"""zInfer: requests become tokens.

The journey of a request: ``LLM`` or ``AsyncEngine`` -> ``EngineCore`` -> ``Scheduler`` (which
tokens of which sequences) -> ``ModelRunner`` -> ``output`` (tokens become text).
"""
