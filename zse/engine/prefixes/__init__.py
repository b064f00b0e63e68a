"""Prefixes that survive: KV of prompts in a ``.zse`` file, and what was hot before a restart."""
