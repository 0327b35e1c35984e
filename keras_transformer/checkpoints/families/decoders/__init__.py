"""Text decoders (GPT-like)."""
