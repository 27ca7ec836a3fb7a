"""A package, so that servers that its files share end with it and not with all tests."""
