"""What an operator wants checked before asking anybody: one finding a line, each saying what to do."""
