"""Encoder-decoders joined from two published models."""
