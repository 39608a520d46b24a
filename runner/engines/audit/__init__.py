"""What the installed engine's source says about each flag: parsed, never imported, no GPU."""
