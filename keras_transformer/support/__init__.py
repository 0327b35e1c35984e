"""Helpers for every package: checks, files, processes, and names of other libraries."""
