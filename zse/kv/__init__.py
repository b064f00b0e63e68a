"""zKV: who owns which KV block, and which prefixes are shared."""
