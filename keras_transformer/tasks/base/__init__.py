"""The base class of tasks and of their heads."""
