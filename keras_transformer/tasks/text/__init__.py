"""Tasks on text: classification, tags, answers, vectors, generation."""
