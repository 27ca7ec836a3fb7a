"""Where drafts come from; see `base` for the contract."""
