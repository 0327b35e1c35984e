"""Constraints: regular expressions, choices and JSON Schemas as automata over tokens."""
