"""The draft nodes that the next pass verifies, chosen by the measured time of passes."""
