"""Heads that several tasks share."""
