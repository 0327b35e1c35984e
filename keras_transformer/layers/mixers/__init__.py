"""Mixers other than attention."""
