"""A package, because pytest shares fixtures within a package: servers end with the integration tests."""
