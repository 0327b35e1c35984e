"""Text encoders (BERT-like)."""
