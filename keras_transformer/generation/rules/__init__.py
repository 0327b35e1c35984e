"""Rules, which change the scores of the next tokens."""
