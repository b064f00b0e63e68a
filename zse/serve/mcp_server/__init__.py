"""This server as an MCP server: its models, its documents and its status, for other programs."""
