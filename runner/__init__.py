"""Which engine flags help, by how much, with what evidence, for the fewest GPU minutes."""

__version__ = "0.1.0"
