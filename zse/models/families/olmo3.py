"""OLMo 3: OLMo 2 whose layers see a window, but for every fourth."""

from __future__ import annotations

from zse.models.families import olmo2

ARCHITECTURES = ("Olmo3ForCausalLM",)
MODELS = "OLMo 3"
read = olmo2.read
