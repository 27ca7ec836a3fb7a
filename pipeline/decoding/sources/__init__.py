"""Draft sources; see `base` for the contract."""
