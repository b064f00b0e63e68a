"""Answers as models of each family write them, after their published templates and documentation.

Each is what a tokenizer makes of the model's tokens when the form's control tokens are kept.
"""

from corpus.deepseek import DEEPSEEK
from corpus.glm import GLM
from corpus.granite import GRANITE
from corpus.harmony import HARMONY
from corpus.hermes import HERMES
from corpus.kimi import KIMI
from corpus.llama3 import LLAMA3
from corpus.mistral import MISTRAL
from corpus.nemotron import NEMOTRON
from corpus.pythonic import PYTHONIC
from corpus.qwen3_coder import QWEN3_CODER
from corpus.sample import TOOLS as TOOLS

ALL = [
    *HERMES,
    *QWEN3_CODER,
    *LLAMA3,
    *MISTRAL,
    *DEEPSEEK,
    *GLM,
    *PYTHONIC,
    *HARMONY,
    *KIMI,
    *GRANITE,
    *NEMOTRON,
]
