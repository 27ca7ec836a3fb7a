"""Configuration: schema, loading, resolution."""
