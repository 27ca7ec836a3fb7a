"""The draft tree of a step: grown from the proposals of all draft sources, with what is learned from its outcome."""
