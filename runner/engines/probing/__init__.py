"""What is measured on a node without an engine: collectives over its links."""
