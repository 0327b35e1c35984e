"""Samplers, which choose the next tokens, and the searches that extend them."""
