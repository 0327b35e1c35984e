"""Text encoder-decoders (T5-like)."""
