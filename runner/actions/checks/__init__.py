"""One file a subject of `action=doctor`: facts in, findings out. Nothing here looks at the machine but facts.py."""
